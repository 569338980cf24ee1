"""`pamx chat` from a pipe."""

from __future__ import annotations

from .conftest import Run


def test_each_line_is_a_turn_of_one_conversation(run: Run) -> None:
    result = run(
        "chat",
        "--max-tokens",
        "12",
        "--system",
        "Be brief.",
        input="My name is Zaphod.\n\n  \nRepeat my name.\r\n",
    )
    assert result.returncode == 0
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert result.stdout.endswith("\n")
    assert "Zaphod" in result.stdout


def test_a_turn_past_the_context_is_said_and_the_chat_goes_on(run: Run) -> None:
    result = run("chat", "--context", "64", "--max-tokens", "2", input="word " * 90 + "\nHi\n")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert "context" in result.stderr
    assert len(result.stdout.splitlines()) == 1


def test_a_full_context_is_said_where_it_cuts_an_answer(run: Run) -> None:
    """The status stays 0, as for an answer that --max-tokens cuts; nothing is said about that."""
    story = "Tell me a long story about the sea.\n"
    cut = run("chat", "--context", "64", input=story)
    assert cut.returncode == 0
    assert cut.stderr == "The answer is cut off: the context of 64 tokens is full.\n"
    asked = run("chat", "--context", "64", "--max-tokens", "4", input=story)
    assert (asked.returncode, asked.stderr) == (0, "")


def test_no_input_is_no_conversation(run: Run) -> None:
    result = run("chat", input="\n \n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_input_that_is_not_text(run: Run) -> None:
    result = run("chat", input=b"\xff\n")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "not valid UTF-8" in result.stderr
    assert "Traceback" not in result.stderr
