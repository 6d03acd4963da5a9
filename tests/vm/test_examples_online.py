"""Each example that starts from a public registry's image does what its comments say.

The registry is one of the test, reached under docker.io's own name, and what it serves holds
Debian's python3, nodejs, git and curl in two layers. The network is a lab without an uplink.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian import debian
from tests.debianlayers import BUNDLE, layers
from tests.registry import Registry, needs_registry, registry
from tests.vm.harness import ROOT, until
from tests.vm.netlab import PUBLIC4, NetHome, net_home
from tests.vm.newcomer import Newcomer
from tests.vm.people import person
from tests.vm.usernet import user_home

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(300), needs_registry]

SERVED = ("library/python:3.13-slim", "library/python:3.13", "library/node:22-slim")
SAID = ("PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")
PROXY, PORT, NAME = "203.0.113.7", 3128, "code.example"


@pytest.fixture(scope="module")
def home() -> Iterator[NetHome]:
    with net_home() as made:
        yield made


@pytest.fixture(scope="module")
def served(home: NetHome) -> Iterator[Registry]:
    with (
        tempfile.TemporaryDirectory(prefix="boxtest-") as tmp,
        registry(Path(tmp), home.lab.enter(home.lab.host)) as made,
    ):
        Path(tmp).chmod(0o755)
        made.layout.image("tools", *layers(debian()), Env=list(SAID))
        for name in SERVED:
            made.push("tools", name)
        yield made


@pytest.fixture(scope="module")
def newcomer(home: NetHome, served: Registry, tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    home.stop()
    home.env["HOME"] = str(served.home)
    home.start()
    return Newcomer(tmp_path_factory.mktemp("newcomer"), home)


def python_dev(newcomer: Newcomer, word: str) -> None:
    newcomer.begin("python-dev", "py")
    said = (
        "import os, site, sys; print(sys.version_info[0], site.getuserbase(), os.environ['LANG'])"
    )
    assert newcomer.says("py", "python3", "-c", said) == "3 /data/python C.UTF-8\n"
    script = b"import os\nprint(os.path.expanduser('~'), os.uname().release)\n"
    ran = newcomer.home.box("exec", "py", "-i", "--", "python3", "-", data=script).stdout.split()
    assert ran[0] == b"/data" and ran[1].endswith(b"cloud-amd64")
    # What pip would do; its own work is not that of box.
    place = newcomer.says("py", "python3", "-c", "import site; print(site.getusersitepackages())")
    newcomer.shell("py", f"mkdir -p {place.strip()} && echo word = 1234 >{place.strip()}/mine.py")
    newcomer.shell("py", "mkdir -p ~/python/bin && cp /bin/true ~/python/bin/mytool")
    assert newcomer.shell("py", "mytool && python3 -c 'import mine; print(mine.word)'") == "1234\n"
    dial = f"import socket; print(socket.create_connection(('{PUBLIC4}', 443), 20).recv(99))"
    assert newcomer.says("py", "python3", "-c", dial) == f"b'{word}\\n'\n"
    newcomer.end("py")


def test_python_dev(newcomer: Newcomer, home: NetHome) -> None:
    python_dev(newcomer, home.lab.word)


def test_python_dev_of_an_ordinary_user(home: NetHome, served: Registry) -> None:
    with person() as someone, user_home(someone, home.lab) as its:
        own = someone.folder / "own"
        served.admit(own, someone.uid, someone.gid)
        its.start()
        python_dev(Newcomer(own, its), home.lab.word)


def test_node_dev(newcomer: Newcomer) -> None:
    newcomer.begin("node-dev", "web")
    newcomer.shell("web", "mkdir -p /data/npm/lib/node_modules/mine /data/npm/bin")
    newcomer.shell("web", "echo 'exports.word = 1234' >$NODE_PATH/mine/index.js")
    shown = newcomer.says(
        "web", "node", "-p", "[process.version, require('mine').word, os.homedir()].join(' ')"
    ).split()
    assert shown[0].startswith("v") and shown[1:] == ["1234", "/data"]
    newcomer.end("web")


@pytest.fixture
def proxy(newcomer: Newcomer) -> Iterator[Path]:
    """The proxy that ai-agent names, and behind it a repository; its log."""
    home, folder = newcomer.home, newcomer.folder / "proxy"
    assert isinstance(home, NetHome)
    lab = home.lab
    web = folder / "web"
    web.mkdir(parents=True)
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={NAME}"]
    made += ["-addext", f"subjectAltName=DNS:{NAME}", "-keyout", "key", "-out", "crt"]
    work = ["git", "-C", "work", "-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    for command in (
        made,
        ["git", "init", "-q", "work"],
        [*work, "commit", "-q", "--allow-empty", "-m", "first"],
        ["git", "clone", "-q", "--bare", "work", "web/project.git"],
        ["git", "-C", "web/project.git", "update-server-info"],  # for a plain web server
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    lab.run(lab.world, "ip", "addr", "add", f"{PROXY}/24", "dev", "up1")
    program = [sys.executable, str(Path(__file__).with_name("connect_proxy.py"))]
    files = [str(folder / each) for each in ("crt", "key", "web")]
    log = folder / "log"
    with open(log, "wb") as out:
        running = subprocess.Popen(
            [*lab.enter(lab.world), *program, PROXY, str(PORT), NAME, *files], stdout=out
        )
    try:
        until(lambda: log.read_text(), 20, "the proxy listens")
        yield folder
    finally:
        running.kill()
        running.wait()


def test_ai_agent(newcomer: Newcomer, proxy: Path) -> None:
    newcomer.begin("ai-agent", "agent")
    home, certificate = newcomer.home, (proxy / "crt").read_bytes()
    # What it needs to work, in a root that it cannot write:
    home.box("exec", "agent", "-i", "--", "sh", "-c", "cat >~/ca.crt", data=certificate)
    trusted = ("exec", "agent", "-e", "GIT_SSL_CAINFO=/data/ca.crt", "-w", "/data", "--")
    home.box(*trusted, "git", "clone", "-q", f"https://{NAME}/project.git")
    home.box(*trusted, "curl", "-sSf", "--cacert", "ca.crt", f"https://{NAME}/project.git/HEAD")
    commit = "git config --global core.editor true && cd ~/project"
    commit += " && echo x >new && git add new && git commit -qm second"
    said = newcomer.shell("agent", f"{commit} && git log --format=%an")
    assert said.splitlines() == ["agent", "t"]
    newcomer.says("agent", "python3", "-c", "import tempfile; tempfile.TemporaryFile()")
    assert int(newcomer.shell("agent", f"grep -c BEGIN /{BUNDLE}")) > 100
    # And what it may not:
    assert "Read-only" in newcomer.refused("agent", "touch", "/usr/bin/git")
    assert "403" in newcomer.refused("agent", "curl", "-sS", "https://other.example/")
    past = ("curl", "-sS", "-m", "2", "--noproxy", "*")
    for address in (f"http://{PUBLIC4}/", f"http://{PROXY}:443/"):
        assert "timed out" in newcomer.refused("agent", *past, address)
    asked = (proxy / "log").read_text().splitlines()[1:]
    assert set(asked) == {f"tunnel {NAME}:443", "refused other.example:443"}
    newcomer.end("agent")


def shape(text: str) -> list[str]:
    """What stays from run to run: not numbers, ages, columns and the name of a temporary folder."""
    text = re.sub(r"box-demo\.\w+", "box-demo", text)
    text = re.sub(r"\d+(\.\d+)?", "0", text)
    text = re.sub(r"\b0[smh](0[sm])?\b", "0s", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_the_story_of_a_fork_is_that_of_the_readme(newcomer: Newcomer) -> None:
    home = newcomer.home
    assert isinstance(home, NetHome)
    told = subprocess.run(
        [*home.lab.enter(home.lab.host), "sh", str(ROOT / "examples/fork.sh")],
        env=home.env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    section = (ROOT / "README.md").read_text().partition("`examples/fork.sh` tells")[2]
    section = section.partition("\n## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("    ")]
    assert shape(told.stdout) == shape("\n".join(shown))
