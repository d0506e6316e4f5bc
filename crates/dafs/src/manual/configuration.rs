//! The page dafs.toml(5), from the definitions that the server's parser uses.

use super::Page;
use super::roff::{Roff, bold, italic};
use dafs_server::{Form, Key, config_keys, engine_keys};

/// The place of the configuration that the units and the packages use.
pub(crate) const CONFIG_FILE: &str = "/etc/dafs/dafs.toml";

/// Returns the page.
pub(super) fn page() -> Page {
    let mut page = Roff::new("dafs.toml", 5, "configuration of the dafs file server");
    page.section("Synopsis");
    page.paragraphs(&format!("`{CONFIG_FILE}`"));
    page.section("Description");
    page.paragraphs(
        "The file is in TOML. It belongs to root or to the server's user, and others may not write to it. \
         Relative paths in it begin at its own folder. An unknown key and a value that cannot be used stop \
         the server; the message has the line and the remedy.\n\n\
         A number is in the unit that the name of its key ends with. Text may have another unit: \
         `\"4MiB\"`, with `B`, `KiB`, `MiB`, `GiB` and `TiB`, where the key ends with `_bytes`, and `\"30s\"`, \
         with `ms`, `s`, `min` and `h`, where it ends with `_seconds` or `_ms`.\n\n\
         `dafs config init` writes a first file, and `dafs config check` checks a file. A running server \
         reads the file again at SIGHUP and at `dafs reload`: exports, the users of `password_file`, the \
         secrets in the file of `cluster.secret`, and the rules `[[importance]]` and `[[identity]]` with \
         `certificate` follow. The other keys need a restart, and the answer names those that have changed.",
    );
    page.section("Example");
    page.verbatim(
        "listen = [\"0.0.0.0:20490\"]\n\
         password_file = \"users\"\n\n\
         [[export]]\n\
         name = \"projects\"\n\
         path = \"/srv/projects\"",
    );
    page.section("Keys");
    tables(&mut page, "", &config_keys());
    page.section("Files of data servers");
    page.paragraphs(
        "A data server for CephFS or GlusterFS, `dafs serve --role data --engine FILE`, has a file of its \
         own with one of two tables.",
    );
    tables(&mut page, "", &engine_keys());
    page.section("Files");
    page.item(&bold(CONFIG_FILE), "The configuration.");
    page.item(&bold("/etc/dafs/users"), "The users of `password_file`, by the example.");
    page.item(&bold("/var/lib/dafs"), "The state of a server that runs as root.");
    page.section("See also");
    page.references(&[("dafs".to_owned(), 1), ("dafs-serve".to_owned(), 1)]);
    Page { file: "dafs.toml.5".to_owned(), text: page.finish() }
}

/// Adds the keys of a table, then those of the tables below it. `above` is the name of the table with a
/// dot, or empty.
fn tables(page: &mut Roff, above: &str, keys: &[Key]) {
    for key in keys {
        let form = match key.form {
            Form::Value(words) => words.to_owned(),
            Form::List(words) => format!("[{words}, ...]"),
            Form::Table(_) | Form::Tables(_) => continue,
        };
        let also = key.other_name.map(|name| format!(", {}", bold(name))).unwrap_or_default();
        page.item(&format!("{}{also} = {}", bold(key.name), italic(&form)), &key.about);
    }
    for key in keys {
        let name = format!("{above}{}", key.name);
        let (below, head) = match &key.form {
            Form::Value(_) | Form::List(_) => continue,
            Form::Table(below) => (below, format!("[{name}]")),
            Form::Tables(below) => (below, format!("[[{name}]]")),
        };
        page.part(&head);
        page.paragraphs(&key.about);
        tables(page, &format!("{name}."), below);
    }
}

#[cfg(test)]
mod tests {
    use super::super::roff::escaped;
    use super::*;

    fn each(keys: &[Key], above: &str, check: &mut dyn FnMut(&str, &Key)) {
        for key in keys {
            let name = format!("{above}{}", key.name);
            check(&name, key);
            if let Form::Table(below) | Form::Tables(below) = &key.form {
                each(below, &format!("{name}."), check);
            }
        }
    }

    #[test]
    fn each_key_is_in_the_page() {
        let text = page().text;
        let mut keys = 0;
        let mut check = |name: &str, key: &Key| {
            keys += 1;
            let wanted = match &key.form {
                Form::Value(_) | Form::List(_) => bold(key.name),
                Form::Table(_) => format!(".SS {}\n", escaped(&format!("[{name}]"))),
                Form::Tables(_) => format!(".SS {}\n", escaped(&format!("[[{name}]]"))),
            };
            assert!(text.contains(&wanted), "{name} is not in dafs.toml(5)");
        };
        each(&config_keys(), "", &mut check);
        each(&engine_keys(), "", &mut check);
        assert!(keys > 80, "{keys} keys");
    }
}
