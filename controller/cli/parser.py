"""Every verb of `box` with its arguments and an example, and nothing of what the verbs do.

A verb is run from the module named beside it, imported only then. This module must stay free of our
own imports, so that `--help` and completion are quick.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from importlib import import_module
from typing import Any, NoReturn

from controller.cli import diskwords, imagewords, words
from controller.cli.words import Verb

FORMS = ("table", "wide", "json", "yaml", "toml", "name")

EPILOG = """\
a first sandbox:
  box doctor                        what this host still needs
  box controller &                  the loop that makes Boxfiles true
  box new agent && box apply -f agent.box.yaml --wait
  box exec agent -- uname -a

BOX_HOME names the home (default ~/.box). Exit status: 0 done, 1 failed, 2 usage or invalid
Boxfile; exec and run: the command's own, 124 timeout, 125 box itself failed.
"""


INVALID_VERB = re.compile(r"argument VERB: invalid choice: '(.*?)' ")


class Parser(argparse.ArgumentParser):
    """argparse, with errors in the form of every other error of ours."""

    def error(self, message: str) -> NoReturn:
        self.refuse(message, f"{self.prog} --help shows the form")

    def refuse(self, message: str, fix: str) -> NoReturn:
        from controller.cli.output import safe

        if unknown := INVALID_VERB.match(message):
            message = f"there is no verb {unknown[1]}"
            fix = _closest(unknown[1]) or fix
        self.exit(2, f"box: {safe(message, 400)}\n  fix: {safe(fix, 400)}\n")


def _closest(wanted: str) -> str:
    from difflib import get_close_matches

    found = get_close_matches(wanted, _verbs(build()), n=1, cutoff=0.6)
    return f"did you mean box {found[0]}?" if found else ""


def _verbs(parser: Parser) -> dict[str, Parser]:
    assert parser._subparsers is not None
    return dict(parser._subparsers._group_actions[0].choices or {})


def run(arguments: list[str]) -> int:
    """Parse and run one command line. Raises whatever the verb raises."""
    parser = build()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        if " -- " in os.environ.get("COMP_LINE", ""):
            return 0  # what follows is the guest's, whose words nobody here knows
        argcomplete.autocomplete(parser)
    # What follows -- is the command's, however much it looks like options of ours.
    command: list[str] | None = None
    if arguments[:1] in (["exec"], ["run"]) and "--" in arguments:
        split = arguments.index("--")
        arguments, command = arguments[:split], arguments[split + 1 :]
    if arguments[:1] == ["--version"]:
        arguments[0] = "version"
    chosen, rest = parser.parse_known_args(arguments, argparse.Namespace(command=command))
    if rest:
        _refuse_rest(parser, chosen, arguments, rest)
    if chosen.verb == "help":
        chosen.verb = None
        parser = _verb_named(parser, chosen.about) if chosen.about else parser
    if chosen.verb is None:
        parser.print_help()
        return 0
    module, function = chosen.handler
    status: int = getattr(import_module(f"controller.cli.{module}"), function)(chosen)
    return status


def _refuse_rest(
    parser: Parser, chosen: argparse.Namespace, arguments: list[str], rest: list[str]
) -> NoReturn:
    """Say what to do about words that belong to nothing."""
    if chosen.verb in ("exec", "run") and not rest[0].startswith("-"):
        # From the first of them on: options between them were meant for the command too.
        command = arguments[arguments.index(rest[0], 1) :] + (chosen.command or [])
        form = f"box {chosen.verb} {chosen.name} -- {shlex.join(command)}"
        parser.refuse("the command comes after --", form)
    verb = f" {chosen.verb}" if chosen.verb else ""
    parser.refuse(f"unrecognized arguments: {' '.join(rest)}", f"box{verb} --help shows the form")


def _verb_named(parser: Parser, name: str) -> Parser:
    found = _verbs(parser).get(name)
    if found is None:
        parser.refuse(f"there is no verb {name}", _closest(name) or "box --help lists them")
    return found


def build() -> Parser:
    parser = Parser(
        prog="box",
        description="Confined microVMs that stay as a folder of small files says.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="the same as box version")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")

    def verb(name: str, module: str, summary: str, *examples: str) -> Parser:
        shown = "examples:\n" + "\n".join(f"  {one}" for one in examples)
        made: Parser = verbs.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=shown,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.set_defaults(handler=(module, name.replace("-", "_")))
        return made

    _running(verb)
    _changing(verb)
    diskwords.add(verb)
    imagewords.add(verb)
    _reading(verb)
    _host(verb)
    return parser


def _running(verb: Verb) -> None:
    one = verb(
        "controller",
        "service",
        "run the loop that makes Boxfiles true",
        "box controller",
        "box controller --once     # converge every sandbox, then exit",
    )
    one.epilog = f"{one.epilog}\n\nas a service: docs/service.md has a systemd unit for it"
    one.add_argument("--once", action="store_true", help="converge and exit")
    one = verb(
        "exec",
        "execute",
        "run a command in a running sandbox; its exit status becomes ours",
        "box exec agent -- uname -a",
        "tar c . | box exec agent -i -- tar x -C /data",
    )
    _command(one)
    one = verb(
        "run",
        "execute",
        "run a command in a fresh VM of a stopped sandbox, thrown away afterwards",
        "box run agent -- ls -l /data",
        "box run agent -i --timeout 5m -- sh < job.sh",
    )
    _command(one)


def _command(one: argparse.ArgumentParser) -> None:
    options = "[-i] [-e KEY=VALUE] [-w DIR] [-u USER] [--timeout TIME]"
    one.usage = f"{one.prog} NAME {options} -- CMD..."
    words.name(one)
    one.add_argument("-i", "--stdin", action="store_true", help="forward standard input")
    one.add_argument("-t", "--tty", action="store_true", help="not supported yet")
    one.add_argument("-e", "--env", action="append", default=[], metavar="KEY=VALUE")
    one.add_argument("-w", "--cwd", metavar="DIR", help="working directory in the guest")
    one.add_argument("-u", "--user", help="user in the guest")
    one.add_argument(
        "--timeout", type=words.seconds, metavar="TIME", help="kill it after TIME; 124"
    )


def _changing(verb: Verb) -> None:
    one = verb(
        "apply",
        "change",
        "write Boxfiles into the watched folder",
        "box apply -f agent.box.yaml --wait",
        "box apply -f examples/",
        "sed s/512/1024/ agent.box.yaml | box apply -f -",
    )
    words.files(one)
    one.add_argument("--dry-run", action="store_true", help="say what would happen, write nothing")
    one.add_argument("--wait", action="store_true", help="until every sandbox is as declared")
    words.timeout(one)
    one.add_argument(
        "--if-match", metavar="DIGEST", help="only over a file with this SHA-256 (see box describe)"
    )
    one = verb(
        "diff",
        "change",
        "what apply would change, field by field; exit 1 if anything",
        "box diff -f agent.box.yaml",
    )
    words.files(one)
    one = verb(
        "delete",
        "change",
        "remove sandboxes; /data is kept unless --data or data.on_delete: erase",
        "box delete agent",
        "box delete agent moss --wait",
        "box delete -f agent.box.yaml --data",
    )
    words.name(one, nargs="*")
    words.files(one, required=False)
    one.add_argument("--data", action="store_true", help="erase /data too, 60 s from now")
    one.add_argument(
        "--wait",
        action="store_true",
        help="until nothing of it is left; where /data is erased that takes over 60 s",
    )
    words.timeout(one)
    one = verb(
        "new",
        "start",
        "write a commented Boxfile to begin with, in the current folder",
        "box new agent",
        "box new agent --from offline",
        "box new --list",
    )
    words.name(one, known=False, nargs="?")
    from_example: Any = one.add_argument(
        "--from",
        dest="example",
        metavar="EXAMPLE",
        help="copy an example",
    )
    from_example.completer = words.example_names
    one.add_argument("--list", action="store_true", help="say which examples there are")
    one = verb(
        "prune",
        "change",
        "show removals that are held back, or let them happen",
        "box prune",
        "box prune --confirm",
    )
    one.add_argument("--confirm", action="store_true", help="remove what is held back")


def _reading(verb: Verb) -> None:
    one = verb(
        "get",
        "get",
        "list sandboxes",
        "box get",
        "box get agent -o yaml",
        "box get --watch",
    )
    words.name(one, nargs="*")
    words.form(one, FORMS)
    one.add_argument("-w", "--watch", action="store_true", help="go on, printing what changes")
    one = verb(
        "describe",
        "describe",
        "everything known about one",
        "box describe agent",
        "box describe agent -o json",
    )
    words.name(one)
    words.form(one, ("table", "json", "yaml", "toml"))
    one = verb("drift", "history", "differences found, open and corrected", "box drift agent")
    words.name(one, nargs="?")
    words.form(one, ("table", "json", "yaml", "toml"))
    one = verb("events", "history", "what happened", "box events agent --follow")
    words.name(one, nargs="?")
    one.add_argument("-f", "--follow", action="store_true", help="go on, printing what is new")
    one = verb(
        "wait",
        "waiting",
        "until a condition holds",
        "box wait agent --for Ready --timeout 60s",
        "box wait agent --for Drifted=False",
        "box wait agent --for deleted",
    )
    words.name(one)
    wanted: Any = one.add_argument(
        "--for",
        dest="condition",
        required=True,
        metavar="CONDITION",
        help="TYPE, TYPE=STATUS, deleted",
    )
    wanted.completer = words.conditions
    words.timeout(one)
    one = verb("logs", "history", "the guest's console", "box logs agent --console --follow")
    words.name(one)
    one.add_argument("--console", action="store_true", help="the console (the only log so far)")
    one.add_argument("-f", "--follow", action="store_true", help="go on, printing what is new")
    one.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    one = verb("verify", "verify", "prove kernel and confinement now", "box verify agent")
    words.name(one)
    words.form(one, ("table", "json"))


def _host(verb: Verb) -> None:
    one = verb(
        "doctor", "doctor", "what this host offers and lacks", "box doctor", "box doctor -o json"
    )
    words.form(one, ("table", "json"))
    one = verb("schema", "start", "JSON Schema of the Boxfile", "box schema --output boxfile.json")
    one.add_argument("-o", "--output", metavar="FILE", help="instead of standard output")
    one = verb("help", "start", "how a verb is used", "box help", "box help apply")
    about: Any = one.add_argument("about", metavar="VERB", nargs="?", help="the verb")
    about.completer = lambda **_: list(_verbs(build()))
    one = verb("version", "start", "versions of box and what it runs on", "box version")
    words.form(one, ("table", "json"))
    one = verb(
        "completion",
        "start",
        "shell code that completes box commands",
        'eval "$(box completion bash)"',
        "box completion fish > ~/.config/fish/completions/box.fish",
    )
    one.add_argument("shell", choices=("bash", "zsh", "fish"))
