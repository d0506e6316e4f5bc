//! A Kerberos realm on loopback, with a KDC of its own.
//!
//! Invariants
//! * Nothing of the machine's own Kerberos is used or changed, no name is looked up in the DNS, and no privilege
//!   is needed.
//! * The KDC ends with the test, also when the test is killed.
//!
//! Notes
//! * The libraries of Kerberos find their configuration by the environment, which belongs to the process. So a
//!   test runs itself again, with the realm in its environment.

use crate::stores::missing;
use std::fs::Permissions;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The name of the realm.
pub const REALM: &str = "TEST.DAFS";

/// The encryption types of the realm, by their numbers 17 to 20.
pub const ENCTYPES: [(u32, &str); 4] = [
    (17, "aes128-cts-hmac-sha1-96"),
    (18, "aes256-cts-hmac-sha1-96"),
    (19, "aes128-cts-hmac-sha256-128"),
    (20, "aes256-cts-hmac-sha384-192"),
];

/// Set in the test that runs again: the directory of the realm, and the case.
const INSIDE: &str = "DAFS_TEST_REALM";
const CASE: &str = "DAFS_TEST_REALM_CASE";

/// The attempts to find a port that is free for TCP and UDP.
const TRIES_MAX: usize = 20;

/// A realm. Its files:
///
/// * `server.keytab`: `nfs/`, `dafs/` and `host/` of `localhost` and `server.test.dafs`;
/// * `e17.keytab` to `e20.keytab`: `nfs/e17.test.dafs` and so on, with keys of that one type;
/// * `anna.keytab`, `bert.keytab`: users, whose passwords are `secret-anna` and `secret-bert`.
#[derive(Debug)]
pub struct Realm {
    dir: PathBuf,
    /// In the process that started the realm.
    running: Option<(TempDir, Child)>,
}

impl Realm {
    /// Runs one test, named with its module, again in a realm, once for each case: a name, and the encryption
    /// types that the libraries may use. Returns the realm and the name of the case in these runs.
    ///
    /// Without the programs of a realm the test is skipped, which is a failure in CI.
    ///
    /// # Panics
    /// The test failed.
    pub fn again(test: &str, cases: &[(&str, &[&str])]) -> Option<(Self, String)> {
        if let (Some(dir), Ok(case)) = (std::env::var_os(INSIDE), std::env::var(CASE)) {
            return Some((Self { dir: dir.into(), running: None }, case));
        }
        let realm = Self::start()?;
        for (case, enctypes) in cases {
            let config = realm.configuration(case, enctypes);
            let output = Command::new(std::env::current_exe().unwrap())
                .args([test, "--exact", "--nocapture"])
                .env(INSIDE, &realm.dir)
                .env(CASE, case)
                .env("KRB5_CONFIG", config)
                .env("KRB5CCNAME", realm.path("default-cache"))
                .env("KRB5_KTNAME", realm.path("no-keytab"))
                .env_remove("KRB5_CLIENT_KTNAME")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{test} with {case}:\n{text}\n{errors}");
            assert!(text.contains(" 1 passed"), "{test} is no test: {text}");
        }
        None
    }

    /// Starts a realm with its KDC. `None` without the programs.
    pub fn start() -> Option<Self> {
        for name in ["kdb5_util", "kadmin.local", "krb5kdc", "kinit", "setpriv"] {
            if program(name).is_none() {
                missing(&format!("no Kerberos realm to test with: {name} is not installed"));
                return None;
            }
        }
        let home = TempDir::new().unwrap();
        let mut realm = Self { dir: home.path().to_owned(), running: None };
        for _ in 0..TRIES_MAX {
            realm.write_files(free_port());
            if !realm.path("principal").exists() {
                realm.fill();
            }
            if let Some(kdc) = realm.serve() {
                realm.running = Some((home, kdc));
                return Some(realm);
            }
        }
        panic!("no KDC came up:\n{}", realm.log());
    }

    /// Returns the path of a file of the realm.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the name of a cache in a file of the realm, as the libraries want it.
    pub fn cache(&self, name: &str) -> String {
        format!("FILE:{}", self.path(name).display())
    }

    /// Gets a ticket for a user, with further arguments of kinit, into a cache.
    pub fn kinit(&self, user: &str, cache: &str, arguments: &[&str]) {
        let keytab = self.path(&format!("{user}.keytab"));
        let output = self
            .command("kinit")
            .args(["-c", cache, "-k", "-t"])
            .arg(keytab)
            .args(arguments)
            .arg(user)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kinit {user}: {errors}\n{}", self.log());
    }

    /// Gives commands to kadmin.local, one a line.
    pub fn admin(&self, commands: &str) {
        let mut admin = self
            .command("kadmin.local")
            .args(["-p", "admin", "-r", REALM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        admin.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        let output = admin.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let failed = |line: &&str| line.contains("while ") || line.contains("nknown");
        let failed: Vec<&str> = errors.lines().filter(failed).collect();
        assert!(output.status.success() && failed.is_empty(), "kadmin.local: {errors}");
    }

    /// Ends the KDC.
    pub fn stop(&mut self) {
        if let Some((_, kdc)) = &mut self.running {
            kdc.kill().unwrap();
            kdc.wait().unwrap();
        }
    }

    /// Writes a configuration for clients and servers that permits only some encryption types.
    fn configuration(&self, case: &str, enctypes: &[&str]) -> PathBuf {
        let port = std::fs::read_to_string(self.path("port")).unwrap();
        let path = self.path(&format!("krb5-{case}.conf"));
        std::fs::write(&path, configuration(&port, enctypes)).unwrap();
        path
    }

    fn write_files(&self, port: u16) {
        let dir = self.dir.display();
        let port = port.to_string();
        std::fs::write(self.path("port"), &port).unwrap();
        std::fs::write(self.path("kdc-krb5.conf"), configuration(&port, &["DEFAULT"])).unwrap();
        let keys = ENCTYPES.map(|(_, name)| format!("{name}:normal")).join(" ");
        let kdc = format!(
            "[kdcdefaults]\n\
             kdc_listen = 127.0.0.1:{port}\n\
             kdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\n\
             {REALM} = {{\n\
             database_name = {dir}/principal\n\
             key_stash_file = {dir}/stash\n\
             acl_file = {dir}/acl\n\
             max_life = 1h\n\
             supported_enctypes = {keys}\n\
             }}\n\
             [logging]\n\
             kdc = FILE:{dir}/kdc.log\n"
        );
        std::fs::write(self.path("kdc.conf"), kdc).unwrap();
    }

    /// Makes the database and the keytabs.
    fn fill(&self) {
        let output = self
            .command("kdb5_util")
            .args(["create", "-s", "-P", "master", "-r", REALM])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kdb5_util: {errors}");

        let mut commands = String::new();
        let mut add = |options: &str, principal: &str, keytab: &str| {
            let keytab = self.path(keytab);
            commands.push_str(&format!("addprinc {options} {principal}\n"));
            commands.push_str(&format!("ktadd -norandkey -k {} {principal}\n", keytab.display()));
        };
        for service in ["nfs", "dafs", "host"] {
            for host in ["localhost", "server.test.dafs"] {
                add("-randkey", &format!("{service}/{host}"), "server.keytab");
            }
        }
        for (number, name) in ENCTYPES {
            let options = format!("-randkey -e {name}:normal");
            let principal = format!("nfs/e{number}.test.dafs");
            add(&options, &principal, &format!("e{number}.keytab"));
        }
        for user in ["anna", "bert"] {
            add(&format!("-pw secret-{user}"), user, &format!("{user}.keytab"));
        }
        for (number, name) in ENCTYPES {
            commands.push_str(&format!("setstr nfs/e{number}.test.dafs session_enctypes {name}\n"));
        }
        self.admin(&commands);
        for entry in std::fs::read_dir(&self.dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "keytab") {
                std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
            }
        }
    }

    /// Starts the KDC; `None` if it ends, as it does when its port is taken.
    fn serve(&self) -> Option<Child> {
        let port = std::fs::read_to_string(self.path("port")).unwrap().parse().unwrap();
        let (pid, log) = (self.path("kdc.pid"), self.path("kdc.out"));
        let log = std::fs::File::create(log).unwrap();
        let mut kdc = self
            .command("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program("krb5kdc").unwrap())
            .args(["-n", "-P"])
            .arg(&pid)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        loop {
            if kdc.try_wait().unwrap().is_some() {
                return None;
            }
            // The KDC writes its process id when it has its ports, so nobody else answers there.
            let is_up = std::fs::metadata(&pid).is_ok_and(|about| about.len() > 0);
            if is_up && TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Some(kdc);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program(name).unwrap());
        // Inside, the user's programs have the types of the case, as the test itself.
        if name != "kinit" || self.running.is_some() {
            command.env("KRB5_CONFIG", self.path("kdc-krb5.conf"));
        }
        command
            .env("KRB5_KDC_PROFILE", self.path("kdc.conf"))
            .env("KRB5CCNAME", self.path("no-cache"))
            .current_dir(&self.dir);
        command
    }

    fn log(&self) -> String {
        let read = |name| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        read("kdc.out") + &read("kdc.log")
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        if let Some((_, kdc)) = &mut self.running {
            let _ = kdc.kill();
            let _ = kdc.wait();
        }
    }
}

fn configuration(port: &str, enctypes: &[&str]) -> String {
    let enctypes = enctypes.join(" ");
    format!(
        "[libdefaults]\n\
         default_realm = {REALM}\n\
         dns_lookup_kdc = false\n\
         dns_lookup_realm = false\n\
         dns_canonicalize_hostname = false\n\
         rdns = false\n\
         qualify_shortname = \"\"\n\
         permitted_enctypes = {enctypes}\n\
         [realms]\n\
         {REALM} = {{\n\
         kdc = 127.0.0.1:{port}\n\
         }}\n\
         [domain_realm]\n\
         localhost = {REALM}\n\
         .test.dafs = {REALM}\n"
    )
}

/// Finds a program, also where only administrators look.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path: &PathBuf| Path::exists(path))
}

/// Returns a port that is free for TCP and UDP.
fn free_port() -> u16 {
    for _ in 0..TRIES_MAX {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free for both TCP and UDP");
}
