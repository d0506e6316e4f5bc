"""Checks the page of the administration port in a browser, by the Chrome DevTools Protocol.

    page.py BROWSER_PORT look URL TOKEN USER PICTURES
    page.py BROWSER_PORT lost
    page.py BROWSER_PORT restarted

USER has a client, and a name that is HTML. Pictures of both themes and two widths go to the folder PICTURES.
"""
import base64
import http.client
import json
import pathlib
import socket
import struct
import sys
import time

HOSTILE = "<script>window.hostile = 1</script><img src=x onerror='window.hostile = 1'>"
LONG = HOSTILE + "long" * 60

# Texts whose contrast to their background is below that of WCAG 2.1 1.4.3.
PALE = """(() => {
    const channels = text => text.match(/[\\d.]+/g).map(Number);
    const linear = value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = color => [0.2126, 0.7152, 0.0722].reduce((sum, part, at) => sum + part * linear(color[at] / 255), 0);
    const back = element => {
        for (; element; element = element.parentElement) {
            const color = channels(getComputedStyle(element).backgroundColor);
            if (color.length < 4 || color[3] > 0) return color;
        }
        return [255, 255, 255];
    };
    const pale = [];
    for (const element of document.querySelectorAll("body *")) {
        const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data.trim()).join("");
        if (!text || !element.getClientRects().length) continue;
        const style = getComputedStyle(element);
        const color = channels(element instanceof SVGElement ? style.fill : style.color);
        const [dark, bright] = [light(color), light(back(element))].sort((a, b) => a - b);
        if ((bright + 0.05) / (dark + 0.05) < 4.5) pale.push(`${text.slice(0, 40)}: ${color} on ${back(element)}`);
    }
    return pale;
})()"""

# Parts that a keyboard or a screen reader does not find.
UNLABELLED = """[
    ...[...document.querySelectorAll("input")].filter(one => !one.labels.length),
    ...[...document.querySelectorAll("button")].filter(one => !one.textContent.trim()),
    ...[...document.querySelectorAll("figure > svg")].filter(one => !one.getAttribute("aria-label").includes(":")),
    ...[...document.querySelectorAll("table")].filter(one => !one.closest("[role=region][tabindex='0'][aria-labelledby]")),
    ...[...document.querySelectorAll("th")].filter(one => !one.scope),
    ...[...document.querySelectorAll("html")].filter(one => !one.lang),
].map(one => one.outerHTML.slice(0, 80))"""


class Browser:
    """The page that a browser shows. `errors` are those of scripts and of the policy, `failures` those of requests."""

    def __init__(self, port):
        peer = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        peer.request("GET", "/json/list")
        pages = [each for each in json.load(peer.getresponse()) if each["type"] == "page"]
        target = "/" + pages[0]["webSocketDebuggerUrl"].split("/", 3)[3]
        self.peer = socket.create_connection(("127.0.0.1", port), 60)
        self.received = self.peer.makefile("rb")
        self.number, self.errors, self.failures, self.answers = 0, [], [], {}
        key = base64.b64encode(bytes(16)).decode()
        lines = [f"GET {target} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade",
                 f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
        self.peer.sendall("\r\n".join(lines).encode())
        status = self.received.readline()
        assert b" 101 " in status, status
        while self.received.readline().strip():
            pass
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def send(self, method, parameters):
        """Sends a command in a frame of a WebSocket (RFC 6455 5.2), masked by zeros. Returns its number."""
        self.number += 1
        text = json.dumps({"id": self.number, "method": method, "params": parameters}).encode()
        if len(text) < 126:
            head = struct.pack(">BB", 0x81, 0x80 | len(text))
        elif len(text) < 1 << 16:
            head = struct.pack(">BBH", 0x81, 0x80 | 126, len(text))
        else:
            head = struct.pack(">BBQ", 0x81, 0x80 | 127, len(text))
        self.peer.sendall(head + bytes(4) + text)
        return self.number

    def message(self):
        """The next message of the browser."""
        content = b""
        while True:
            first, size = self.received.read(2)
            if size in (126, 127):
                form = ">H" if size == 126 else ">Q"
                size, = struct.unpack(form, self.received.read(struct.calcsize(form)))
            data = self.received.read(size)
            # No data of a message are in pings and pongs, and none come after the end.
            assert first & 15 != 8, "the browser has ended the connection"
            if first & 15 in (9, 10):
                continue
            content += data
            if first & 0x80:
                return json.loads(content)

    def call(self, method, **parameters):
        """Carries out a command. Returns its result. RuntimeError: it failed."""
        number = self.send(method, parameters)
        while True:
            message = self.message()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.event(message.get("method"), message.get("params"))

    def event(self, name, facts):
        if name == "Runtime.exceptionThrown":
            self.errors.append(facts["exceptionDetails"])
        elif name == "Runtime.consoleAPICalled" and facts["type"] in ("error", "assert", "warning"):
            self.errors.append(facts["args"])
        elif name == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            entry = facts["entry"]
            (self.failures if entry["source"] == "network" else self.errors).append(entry)
        elif name == "Fetch.requestPaused":
            content = json.dumps(self.answers[facts["request"]["url"].rsplit("/", 1)[1]]).encode()
            fields = [{"name": "Content-Type", "value": "application/json"}]
            self.send("Fetch.fulfillRequest", {"requestId": facts["requestId"], "responseCode": 200,
                "responseHeaders": fields, "body": base64.b64encode(content).decode()})

    def value(self, expression):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result}")
        return result["result"].get("value")

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def eventually(self, expression, seconds=30):
        end = time.monotonic() + seconds
        while not self.holds(expression):
            assert time.monotonic() < end, (expression, self.errors, self.failures, self.value("document.body.innerText"))
            time.sleep(0.1)

    def holds(self, expression):
        try:
            return self.value(expression)
        except RuntimeError:
            # One page goes and the next comes.
            return False

    def key(self, key, code, text=""):
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            extra = {"text": text} if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra)

    def without_faults(self):
        """No error of a script, of the policy or of a request has come up since the last call of this."""
        assert not self.errors, self.errors
        assert not self.failures, self.failures

    def show(self, theme, width):
        """Shows the page in that theme and width, with its plots drawn again."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        self.eventually("""[...document.querySelectorAll("figure > svg")].every(svg =>
            Math.abs(svg.viewBox.baseVal.width - svg.getBoundingClientRect().width) < 1)""")

    def picture(self, width, height):
        """The upper left part of the page as a PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(picture["data"])

    def pictures(self, folder, name):
        """Checks colours and widths in both themes, and keeps pictures."""
        for theme in ("light", "dark"):
            for width in (1280, 320):
                self.show(theme, width)
                case = f"{name}-{theme}-{width}"
                sizes = self.value("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
                assert sizes[0] <= sizes[1] <= width, (case, sizes)
                brightness = self.value("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
                assert (brightness > 200) == (theme == "light"), (case, brightness)
                pale = self.value(PALE)
                assert not pale, (case, pale)
                height = min(self.value("document.documentElement.scrollHeight"), 4000)
                pathlib.Path(folder, f"{case}.png").write_bytes(self.picture(width, height))


def look(browser, url, token, user, pictures):
    browser.call("Page.navigate", url=url)
    browser.eventually(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")
    browser.eventually("document.activeElement.id === 'token'")
    browser.without_faults()
    browser.call("Input.insertText", text="wrong" + token)
    browser.key("Enter", 13, "\r")
    browser.eventually("document.querySelector('#wrong').textContent.includes('token is wrong')")
    assert browser.value("sessionStorage.length") == 0
    assert browser.value("document.querySelector('main').hidden")
    # The browser reports the answer 401.
    assert all("401" in failure["text"] for failure in browser.failures), browser.failures
    browser.failures.clear()

    browser.value("document.querySelector('#token').value = ''")
    browser.call("Input.insertText", text=token)
    browser.key("Tab", 9)
    assert browser.value("document.activeElement.type") == "submit"
    browser.key("Enter", 13, "\r")
    browser.eventually("!document.querySelector('main').hidden && document.querySelector('#enter').hidden")
    browser.eventually(f"document.querySelector('#clients').textContent.includes({json.dumps(user)})")
    browser.eventually("document.querySelector('#clients').textContent.includes('127.0.0.1:')")
    for plot in ("throughput", "requests", "latency"):
        browser.eventually(f"document.querySelector('#{plot} > svg path.one').getAttribute('d').includes('L')", 60)
    # A read is in most intervals, and each of the two last ones will do.
    browser.eventually("/^read [1-9]/.test(document.querySelector('#throughput li').textContent)")
    assert "/data" in browser.text("#exports"), browser.text("#exports")
    assert browser.value("document.querySelector('#cluster').hidden")
    assert browser.value("document.scripts.length") == 1 and browser.value("typeof hostile") == "undefined"
    assert browser.value("location.href") == url and browser.value("document.cookie") == ""
    assert browser.value("[localStorage.length, sessionStorage.length]") == [0, 1]
    assert browser.value(UNLABELLED) == []
    browser.without_faults()
    browser.pictures(pictures, "server")

    # The token is kept for this tab.
    browser.value("window.isFormer = true")
    browser.call("Page.reload")
    browser.eventually("typeof isFormer === 'undefined' && !document.querySelector('main').hidden")
    browser.without_faults()
    hostile_names(browser, pictures)


def hostile_names(browser, pictures):
    """Answers the requests of the page in place of the server."""
    node = {"export": LONG, "place": LONG, "addresses": [], "connected": True, "trouble": "", "leaving": True,
            "empty": False, "total_bytes": 4 << 40, "available_bytes": 1 << 40, "moved_files": 7, "moved_bytes": 1 << 30,
            "read_bytes": 0, "written_bytes": 0, "indirect_bytes": 0}
    export = {"name": LONG, "read_only": False, "operations": 2**53, "errors": 2**53, "read_bytes": 2**53,
              "written_bytes": 2**53, "latency": []}
    client = {"front_end": LONG, "name": LONG, "transport": LONG, "principal": LONG, "address": LONG, "silent_seconds": 9**9,
              "courtesy": True, "opens": 9**9, "locks": 9**9, "delegations": 0, "operations": 2**53,
              "read_bytes": 2**53, "written_bytes": 2**53, "holds": []}
    counts = ["connections", "dafs_clients", "nfs_clients", "open_files", "locks", "lock_waiters", "delegations",
              "host_load_milli", "cpu_milliseconds"]
    browser.answers = {
        "status": {"status": dict.fromkeys(counts, 9**9) | {
            "version": LONG, "process": 0, "addresses": [], "uptime_seconds": 0, "exports": [export]}},
        "clients": {"clients": [client | {"client": str(number)} for number in range(150)]},
        "nodes": {"nodes": [node | {"number": 1, "files_to_mend": 1234},
                            node | {"number": 2, "files_to_mend": 0, "connected": False, "trouble": LONG},
                            node | {"number": 3, "files_to_mend": None}]},
    }
    browser.call("Fetch.enable", patterns=[{"urlPattern": "*/v1/*"}])
    browser.eventually("document.querySelector('#nodes').textContent.includes('missing: <script>')")
    browser.eventually("document.querySelector('#notes').textContent.includes('restarted')")
    for selector in ("h1", "#exports", "#clients", "#nodes"):
        assert LONG in browser.text(selector), browser.text(selector)
    assert "50 more are not shown" in browser.text("#clients-note")
    assert "3 nodes, 1 missing; \u2013 copies to repair" in browser.text("#nodes-note")
    assert browser.value("document.querySelectorAll('#nodes tr.bad').length") == 1
    assert browser.value("document.querySelectorAll('img, main script').length") == 0
    assert browser.value("typeof hostile") == "undefined"
    assert browser.value(UNLABELLED) == []
    browser.pictures(pictures, "hostile")
    browser.call("Fetch.disable")
    browser.eventually("document.querySelector('#cluster').hidden")
    browser.without_faults()


def lost(browser):
    browser.eventually("document.querySelector('#state').textContent.startsWith('No answer since')")
    assert browser.value("document.querySelector('#state').className") == "bad"
    assert "is lost" in browser.text("#notes"), browser.text("#notes")
    assert not browser.errors, browser.errors


def restarted(browser):
    browser.eventually("document.querySelector('#state').textContent.endsWith('answers.')")
    assert "was restarted" in browser.text("#notes li:nth-child(2)"), browser.text("#notes")
    assert browser.value("document.querySelectorAll('#throughput path.mark').length") >= 1
    browser.eventually("/^read [0-9]/.test(document.querySelector('#throughput li').textContent)")
    browser.value("document.querySelector('#leave').click()")
    assert browser.value("sessionStorage.length") == 0 and not browser.value("document.querySelector('#enter').hidden")
    assert "/data" not in browser.text("main")
    assert not browser.errors, browser.errors


if __name__ == "__main__":
    STEPS = {"look": look, "lost": lost, "restarted": restarted}
    STEPS[sys.argv[2]](Browser(int(sys.argv[1])), *sys.argv[3:])
