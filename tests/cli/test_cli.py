"""The command line, as a user runs it, on both databases."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import typer
from sqlalchemy import text

from tests.fake_provider import fails, running, says
from turnfold import SqlRepository, create_engine
from turnfold.cli import main, render
from turnfold.cli.app import app
from turnfold.testing import some_turns

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def turnfold(*arguments: object, stdin: str = "", **environment: str) -> Done:
    """The command within this process: starting one takes a second."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    environment = {"TURNFOLD_DATABASE_URL": "", **environment}
    with (
        patch.dict(os.environ, environment),
        patch.object(sys, "argv", ["turnfold", *map(str, arguments)]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        patch.object(render.out, "_width", 160),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = exit_code(err)
    return Done(code, *(stream.detach().getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


def exit_code(err: io.TextIOWrapper) -> int:
    try:
        main()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=err)
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    else:
        code = 0
    for stream in (sys.stdout, err):
        stream.flush()
    return code


def turnfold_process(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from turnfold.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
    )


Run = Callable[..., Done]


@pytest.fixture
def run(url: str) -> Run:
    """The command on a migrated database; fails where the command does."""

    def call(*arguments: object, code: int = 0, stdin: str = "") -> Done:
        done = turnfold(*arguments, stdin=stdin, TURNFOLD_DATABASE_URL=url)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return call


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    file = tmp_path / "chat.json"
    messages = [turn.to_message() for turn in some_turns(60)]
    file.write_text(json.dumps([{"role": "system", "content": "Rules."}, *messages]))
    return file


@pytest.fixture
def folded(run: Run, chat: Path) -> str:
    """A session that is imported and compacted."""
    run("import", chat)
    run("compact", "chat", "--fresh-tail-count", 8, "--leaf-chunk-tokens", 200, "--condensed-min-fanout", 3)
    return "chat"


def parsed(done: Done) -> Any:
    return json.loads(done.stdout)


class TestTheWholeWay:
    def test_from_an_empty_database_to_a_context(self, empty_url: str, chat: Path) -> None:
        for arguments in (["migrate"], ["migrate"], ["import", chat], ["compact", "chat"], ["context", "chat"]):
            done = turnfold_process(*arguments, "--database-url", empty_url)
            assert (done.returncode, done.stderr) == (0, "")
        assert "messages" in done.stdout

    def test_import_tells_what_was_new(self, run: Run, chat: Path) -> None:
        assert run("import", chat).stdout == "chat: 61 turns, 61 new\n"
        assert run("import", chat).stdout == "chat: 61 turns, 0 new\n"
        assert parsed(run("import", chat, "--json")) == [{"session_id": "chat", "turns": 61, "added": 0}]

    def test_import_reads_standard_input(self, run: Run, chat: Path) -> None:
        assert run("import", "-", "--session", "mine", stdin=chat.read_text()).stdout == "mine: 61 turns, 61 new\n"

    def test_compact_tells_what_it_did(self, run: Run, chat: Path) -> None:
        run("import", chat)
        stats = parsed(run("compact", "chat", "--json"))
        assert (stats["turns_compacted"], stats["leaf_summaries_created"], stats["tiers_used"]) == (44, 1, ["normal"])
        assert stats["active_tokens_after"] < stats["active_tokens_before"]
        assert "nothing to fold" in run("compact", "chat").stdout

    def test_compact_takes_a_model_of_a_provider(self, run: Run, chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        run("import", chat)
        with running() as provider:
            arguments = ("compact", "chat", "--model", "openai:fake", "--base-url", f"{provider.url}/v1")
            assert parsed(run(*arguments, "--json"))["tiers_used"] == ["normal"]
            provider.script = [fails(401, "authentication_error")]
            run("compact", "chat", "--fresh-tail-count", 0, *arguments[2:], code=1)
        assert [s["model"] for s in parsed(run("tree", "chat", "--json"))] == ["openai:fake"]

    def test_compact_does_not_warn_of_settings_that_nobody_made(
        self, run: Run, url: str, chat: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
        run("import", chat)
        with running() as provider:
            model = ("--model", "anthropic:claude-haiku-5-5", "--base-url", provider.url)
            done = turnfold_process("compact", "chat", *model, "--json", "--database-url", url)
        assert parsed(done)["tiers_used"] == ["normal"]
        assert done.stderr == ""

    def test_compact_tells_what_holds_it_back(self, run: Run, tmp_path: Path) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "ask", "arguments": "{}"}}
        file = tmp_path / "asked.json"
        said = [{"role": "user", "content": f"Turn {number}."} for number in range(30)]
        file.write_text(json.dumps([{"role": "assistant", "content": None, "tool_calls": [call]}, *said]))
        run("import", file)
        assert "before a tool call that waits for its answer" in run("compact", "asked").stdout
        assert parsed(run("compact", "asked", "--json"))["outcome"] == "pending_call"

    def test_refold_makes_again_what_was_folded_without_a_model(
        self, run: Run, chat: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        run("import", chat)
        with running() as provider:
            model = ("--model", "openai:fake", "--base-url", f"{provider.url}/v1")
            provider.script = [says("")]
            assert parsed(run("compact", "chat", *model, "--json"))["tiers_used"] == ["fallback"]
            provider.script = [says("They decided on plan 7.")]
            done = parsed(run("refold", "chat", *model, "--json"))
            assert (done["summaries_refolded"], done["tiers_used"], done["outcome"]) == (1, ["normal"], "refolded")
            assert "0 summaries made again" in run("refold", "chat", *model).stdout
            assert "1 summaries made again" in run("refold", "chat", "--model", "extractive", "--stale", "model").stdout
            assert "stale" in run("refold", "chat", *model, "--stale", "tier", code=2).stderr

    def test_search_shows_where_the_words_stand(self, run: Run, folded: str) -> None:
        said = parsed(run("turns", "chat", "--json"))[3]["content"]
        hits = parsed(run("search", said, "--session", "chat", "--json"))
        assert hits[0]["position"] == 4
        assert hits[0]["highlights"]
        assert "#4" in run("search", said).stdout
        assert "nothing found" in run("search", "unheardofword").stdout
        assert parsed(run("search", said, "--in", "summaries", "--json"))[0]["kind"] == "summary"
        assert "no session" in run("search", said, "--session", "none", code=1).stderr

    def test_describe_tells_what_is_above_and_below(self, run: Run, folded: str) -> None:
        leaf = parsed(run("tree", "chat", "--json"))[0]
        told = parsed(run("describe", leaf["id"], "--json"))
        assert told["summary"] == leaf
        assert [above["id"] for above in told["ancestors"]] == [leaf["parent_id"]]
        assert "part of" in run("describe", leaf["id"]).stdout

    def test_expand_stops_where_the_tokens_end(self, run: Run, folded: str) -> None:
        root = parsed(run("describe", parsed(run("tree", "chat", "--json"))[0]["id"], "--json"))["ancestors"][-1]
        piece = parsed(run("expand", root["id"], "--turns", "--max-tokens", 100, "--json"))
        assert piece["token_count"] <= 100
        told = run("expand", root["id"], "--turns", "--max-tokens", 100).stdout
        assert f"more follows: --after {piece['next_position']}" in told

    def test_status_lists_sessions(self, run: Run, folded: str) -> None:
        (session,) = parsed(run("status", "--json"))
        assert (session["id"], session["last_position"], session["covered_position"]) == ("chat", 61, 53)
        assert "chat" in run("status").stdout
        assert parsed(run("status", "chat", "--json")) == [session]

    def test_tree_shows_every_summary(self, run: Run, folded: str) -> None:
        summaries = parsed(run("tree", folded, "--json"))
        shown = run("tree", folded).stdout
        assert {summary["depth"] for summary in summaries} == {0, 1}
        assert all(summary["id"] in shown for summary in summaries)
        assert "turns 54-61: 8 not folded" in shown

    def test_turns_prints_them_whole(self, run: Run, folded: str, chat: Path) -> None:
        messages = json.loads(chat.read_text())
        assert [turn["content"] for turn in parsed(run("turns", folded, "--json"))] == [m["content"] for m in messages]
        some = parsed(run("turns", folded, "--after", 10, "--limit", 5, "--json"))
        assert [turn["position"] for turn in some] == [11, 12, 13, 14, 15]
        assert "Turn number 59 says something" in run("turns", folded).stdout

    def test_context_prints_what_a_model_would_see(self, run: Run, folded: str) -> None:
        context = parsed(run("context", folded, "--json"))
        assert context["messages"][0] == {"role": "system", "content": "Rules."}
        assert len(context["messages"]) == 10
        assert context["left_out"] == []
        assert f"10 messages, {context['token_count']} tokens" in run("context", folded).stdout
        small = parsed(run("context", folded, "--total", 200, "--fresh-tail-count", 2, "--json"))
        assert small["token_count"] <= 200
        assert small["left_out"]

    def test_expand_goes_down_to_the_turns(self, run: Run, folded: str) -> None:
        summaries = parsed(run("tree", folded, "--json"))
        (parent,) = [summary for summary in summaries if summary["depth"] == 1]
        children = parsed(run("expand", parent["id"], "--json"))
        assert [child["id"] for child in children] == parent["child_ids"]
        turns = parsed(run("expand", children[0]["id"], "--json"))["turns"]
        assert [turn["id"] for turn in turns] == children[0]["source_turn_ids"]
        everything = parsed(run("expand", parent["id"], "--turns", "--json"))["turns"]
        assert [turn["position"] for turn in everything] == list(range(2, 54))
        assert children[0]["id"] in run("expand", parent["id"]).stdout
        assert "Turn number 0 says" in run("expand", children[0]["id"]).stdout

    def test_a_long_session_is_printed_to_its_end(self, run: Run, url: str) -> None:
        engine = create_engine(url)
        SqlRepository(engine).append_turns("long", some_turns(1_203))
        engine.dispose()
        assert len(parsed(run("turns", "long", "--json"))) == 1_203


class TestDoctor:
    def test_a_healthy_store_has_no_fault(self, run: Run, folded: str) -> None:
        assert run("doctor").stdout == "no fault found\n"
        assert parsed(run("doctor", folded, "--json")) == []

    def test_a_fault_is_named_and_what_can_be_derived_is_mended(self, run: Run, folded: str, url: str) -> None:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE turnfold_sessions SET active_tokens = 0"))
        engine.dispose()
        done = run("doctor", code=1)
        assert "session chat: counters: active_tokens is 0, and should be" in done.stdout
        assert parsed(run("doctor", "--json", code=1))[0]["session_id"] == "chat"
        assert run("doctor", "--repair").stdout == "no fault found\n"
        assert run("doctor").stdout == "no fault found\n"

    def test_an_unknown_session_is_named(self, run: Run) -> None:
        assert "no session 'nobody'" in run("doctor", "nobody", code=1).stderr


class TestErase:
    def test_it_asks_first(self, run: Run, folded: str) -> None:
        assert run("erase", folded, stdin="n\n", code=1)
        assert parsed(run("status", folded, "--json"))
        assert "61 turns erased" in run("erase", folded, stdin="y\n").stdout
        assert parsed(run("status", "--json")) == []

    def test_it_need_not_ask(self, run: Run, folded: str) -> None:
        assert parsed(run("erase", folded, "--yes", "--json")) == {"session_id": "chat", "turns": 61}


class TestDemo:
    def test_it_folds_the_conversation_that_ships_with_the_package(self, tmp_path: Path) -> None:
        file = tmp_path / "demo.db"
        done = turnfold("demo", "--database", file)
        assert (done.returncode, done.stderr) == (0, "")
        assert "242 turns" in done.stdout
        assert "depth 1" in done.stdout
        assert "PBX-482" in turnfold("turns", "demo", "--database-url", f"sqlite:///{file}").stdout
        again = turnfold("demo", "--database", file)
        assert again.stdout == done.stdout

    def test_it_fits_on_one_screen(self, tmp_path: Path) -> None:
        lines = turnfold("demo", "--database", tmp_path / "demo.db").stdout.splitlines()
        assert len(lines) <= 50
        assert max(len(line) for line in lines if str(tmp_path) not in line) <= 160


class TestMistakes:
    @pytest.mark.parametrize("command", ["compact", "tree", "turns", "context", "status"])
    def test_an_unknown_session_is_named(self, run: Run, command: str) -> None:
        assert "no session 'nobody'" in run(command, "nobody", code=1).stderr

    def test_an_unknown_summary_is_named(self, run: Run) -> None:
        assert "'sum-0'" in run("expand", "sum-0", code=1).stderr

    @pytest.mark.parametrize(
        "options",
        [["--fresh-tail-count", "-1"], ["--leaf-chunk-tokens", "0"], ["--condensed-min-fanout", "1"]],
        ids=lambda options: options[0],
    )
    def test_a_limit_out_of_range_is_named(self, run: Run, chat: Path, options: list[str]) -> None:
        run("import", chat)
        assert options[0].strip("-").replace("-", "_") in run("compact", "chat", *options, code=1).stderr

    def test_a_broken_file_is_named_with_its_line_and_nothing_is_kept(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "broken.jsonl"
        file.write_text('[{"role": "user", "content": "x"}]\n{"messages": [{"role"')
        assert f"{file}, line 2" in run("import", file, code=1).stderr
        assert parsed(run("status", "--json")) == []

    @pytest.mark.parametrize("name", ["missing.json", "."])
    def test_a_file_that_cannot_be_read_is_named(self, run: Run, tmp_path: Path, name: str) -> None:
        assert str(tmp_path / name).rstrip("/.") in run("import", tmp_path / name, code=1).stderr

    def test_a_database_that_is_not_migrated_is_named_with_the_cure(self, empty_url: str) -> None:
        engine = create_engine(empty_url)
        engine.connect().close()
        engine.dispose()
        done = turnfold("status", "--database-url", empty_url)
        assert done.returncode == 1
        assert "turnfold migrate" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        ("bad_url", "message"),
        [
            ("no url", "database URL"),
            ("mysql://x/y", "mysql"),
            ("postgresql://u:secret@127.0.0.1:1/x", "did not answer"),
            ("sqlite:////nowhere/x.db", "no database file"),
        ],
    )
    def test_a_database_that_cannot_be_used_is_one_line(self, bad_url: str, message: str) -> None:
        done = turnfold("status", "--database-url", bad_url)
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert "secret" not in done.stderr

    def test_looking_makes_no_database(self, tmp_path: Path) -> None:
        file = tmp_path / "none.db"
        assert turnfold("status", "--database-url", f"sqlite:///{file}").returncode == 1
        assert not file.exists()

    def test_without_a_database_the_option_and_the_variable_are_named(self) -> None:
        done = turnfold("status")
        assert done.returncode == 2
        assert "--database-url" in done.stderr
        assert "TURNFOLD_DATABASE_URL" in done.stderr

    def test_a_session_id_that_is_too_long_is_refused(self, run: Run, chat: Path) -> None:
        assert "10,000 characters" in run("import", chat, "--session", "s" * 10_000, code=1).stderr

    def test_a_reader_that_goes_away_is_no_error(self, run: Run, folded: str, url: str) -> None:
        command = f'"{sys.executable}" -c "from turnfold.cli import main; main()" turns {folded} | head -n 1'
        done = subprocess.run(
            command,
            shell=True,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TURNFOLD_DATABASE_URL": url},
        )
        assert "Traceback" not in done.stderr

    def test_without_its_extra_the_command_names_what_to_install(self) -> None:
        script = "import sys; sys.modules['typer'] = None; from turnfold.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == "turnfold: the command line needs typer; install it with: pip install 'turnfold[cli]'\n"


class TestHostileText:
    ESCAPES = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202ereversed\0 \ud800 [bold]markup[/bold]"

    def test_no_escape_of_a_turn_reaches_the_terminal(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "hostile.json"
        messages = [{"role": "user", "content": self.ESCAPES, "name": self.ESCAPES}] * 30
        file.write_text(json.dumps(messages))
        run("import", file, "--session", "s\x1b[2J")
        outputs = [
            run(*arguments).stdout
            for arguments in (
                ["status"],
                ["turns", "s\x1b[2J"],
                ["context", "s\x1b[2J"],
                ["compact", "s\x1b[2J"],
                ["tree", "s\x1b[2J"],
            )
        ]
        for output in outputs:
            assert not set(output) & set("\x1b\x07\x9b\u202e\0\ud800")
        assert "\\x1b[2J" in outputs[1]
        assert "[bold]markup[/bold]" in outputs[1]

    def test_json_keeps_every_character(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "hostile.json"
        file.write_text(json.dumps([{"role": "user", "content": self.ESCAPES}]))
        run("import", file)
        assert parsed(run("turns", "hostile", "--json"))[0]["content"] == self.ESCAPES

    def test_a_terminal_that_knows_only_ascii_gets_ascii(self, url: str, chat: Path) -> None:
        turnfold("import", chat, "--database-url", url)
        done = turnfold_process(
            "tree", "chat", "--database-url", url, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C"
        )
        assert done.returncode == 0, done.stderr


class TestEmbed:
    """`embed`, and what it changes for `search`."""

    EMBEDDER = "tests.cli.test_cli:car_or_not"

    def test_search_finds_what_says_it_in_other_words(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "chat.json"
        said = ["My automobile is red.", "The invoice is paid."]
        file.write_text(json.dumps([{"role": "user", "content": text} for text in said]))
        run("import", file)
        assert "chat: 2 turns and 0 summaries embedded" in run("embed", "--embedder", self.EMBEDDER).stdout
        assert parsed(run("embed", "chat", "--embedder", self.EMBEDDER, "--json")) == {
            "chat": {"turns_embedded": 0, "summaries_embedded": 0}
        }
        assert parsed(run("search", "vehicle", "--json")) == []
        hits = parsed(run("search", "vehicle", "--embedder", self.EMBEDDER, "--json"))
        assert hits[0]["excerpt"] == said[0]

    @pytest.mark.parametrize(
        ("embedder", "said"),
        [
            ("nowhere_at_all:embed", "No module named"),
            ("tests.cli.test_cli:nothing", "nothing"),
            ("tests.cli.test_cli:COMMANDS", "is no function"),
            ("json", "module:attribute"),
            ("", "module:attribute"),
        ],
    )
    def test_an_embedder_that_cannot_be_loaded_is_one_clear_error(
        self, run: Run, chat: Path, embedder: str, said: str
    ) -> None:
        run("import", chat)
        assert said in run("embed", "--embedder", embedder, code=1).stderr


def car_or_not(texts: list[str]) -> list[list[float]]:
    return [[1.0, 0.0] if "automobile" in text or "vehicle" in text else [0.0, 1.0] for text in texts]


class TestPaging:
    @pytest.mark.parametrize("command", ["context", "search", "describe", "expand"])
    def test_what_may_be_long_goes_through_the_pager_on_a_terminal(
        self, run: Run, folded: str, command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leaf = parsed(run("tree", folded, "--json"))[0]
        arguments = {"context": folded, "search": "turn"}.get(command, leaf["id"])
        shown: list[str] = []
        monkeypatch.setattr("pydoc.pager", shown.append)
        monkeypatch.setattr(render.out, "_force_terminal", True)
        assert run(command, arguments).stdout == ""
        assert len("".join(shown)) > 100
        assert run(command, arguments, "--json").stdout


class TestHelp:
    def test_every_command_has_a_help_and_an_example_that_names_it(self) -> None:
        assert set(COMMANDS) == {
            "demo", "migrate", "import", "compact", "refold", "status", "tree", "turns", "context", "expand", "doctor",
            "erase", "search", "describe", "mcp", "embed",
        }  # fmt: skip
        for name, command in COMMANDS.items():
            assert command.help
            assert command.epilog.startswith(f"Example: turnfold {name}")
            assert turnfold(name, "--help").returncode == 0

    def test_every_option_is_explained(self) -> None:
        for command in COMMANDS.values():
            for parameter in command.params:
                assert getattr(parameter, "help", None), f"{command.name} {parameter.name}"

    @pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("demo", "migrate", "mcp")])
    def test_whatever_prints_data_can_print_json(self, name: str) -> None:
        assert any("--json" in parameter.opts for parameter in COMMANDS[name].params)

    def test_without_a_command_the_help_is_shown(self) -> None:
        assert "demo" in turnfold().stdout + turnfold().stderr

    def test_the_version_is_told(self) -> None:
        assert turnfold("--version").stdout.startswith("turnfold 0.")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
class TestProgress:
    def test_a_bar_is_shown_on_a_terminal(self, url: str, chat: Path) -> None:
        turnfold("import", chat, "--database-url", url)
        shown = on_a_terminal("compact", "chat", "--leaf-chunk-tokens", "100", "--database-url", url)
        assert "Folding" in shown
        assert "44" in shown

    @pytest.mark.parametrize(
        ("title", "command"),
        [
            ("Checking", ["doctor"]),
            ("Checking", ["doctor", "--repair"]),
            ("Embedding", ["embed", "--embedder", TestEmbed.EMBEDDER]),
        ],
    )
    def test_a_session_is_named_as_it_is_even_where_it_looks_like_markup(
        self, url: str, title: str, command: list[str]
    ) -> None:
        engine = create_engine(url)
        SqlRepository(engine).append_turns("[/red]\x1b[31m", some_turns(30))
        engine.dispose()
        shown = on_a_terminal(*command, "--database-url", url)
        assert f"{title} [/red]\\x1b[31m" in shown
        assert "30/30" in shown


def on_a_terminal(*arguments: str) -> str:
    """What the command writes to standard error where that is a terminal."""
    main, side = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", "from turnfold.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=side,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
        check=False,
    )
    os.close(side)
    shown = os.read(main, 1 << 16).decode(errors="replace")
    os.close(main)
    assert done.returncode == 0, shown
    return shown
