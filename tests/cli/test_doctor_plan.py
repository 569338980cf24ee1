"""`pamx doctor --plan`: the decision for a machine that is not here, for people and programs."""

from __future__ import annotations

import json

import pytest

from pamx.cli.doctor.plan_text import for_people

from .conftest import Run

LARGE = ("doctor", "--plan", "--heads", "32,8,128")
M4_MAX = ("--cores", "40", "--family", "applegpu_g16s")


def test_a_decision_is_explained(run: Run) -> None:
    result = run(*LARGE, "--context", "20000", *M4_MAX)
    assert result.returncode == 0, result.stderr
    lines = {line.partition("  ")[0]: line for line in result.stdout.splitlines()}
    assert lines["GPU"].endswith("40 cores, applegpu_g16s.")
    assert "gqa_decode, group-sharing, since the full partitions of 256 tokens" in lines["kernel"]
    assert sum(line.startswith("GPU ") for line in result.stdout.splitlines()) == 1
    assert "2,496 simdgroups" in lines["work"]
    assert "256 tokens, at most 79 a row" in lines["partition"]
    assert "not split-KV" in lines
    assert "on this CPU" not in lines
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("context", "more", "partition"),
    [
        ("10752", M4_MAX, 256),
        ("21504", M4_MAX, 512),
        ("1280", (*M4_MAX, "--batch", "10"), 256),
        ("1,10752", M4_MAX, 256),
        ("704", ("--cores", "10", "--family", "applegpu_g15g", "--batch", "6"), 256),
    ],
)
def test_programs_read_the_plan(
    run: Run, context: str, more: tuple[str, ...], partition: int
) -> None:
    result = run(*LARGE, "--context", context, *more, "--json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    decode = plan["gpu"]["decode"]
    assert (decode["kind"], decode["partition"]) == ("GqaDecode", partition)
    assert decode["turned_down"][0].keys() == {"path", "reason"}
    assert len(plan["gpu"]["launches"]) == 2
    assert plan["gpu"]["prefill"] is None
    assert plan["cpu"] is None


def test_without_cores_this_cpu_is_planned_for(run: Run) -> None:
    result = run(*LARGE, "--context", "20000", "--window", "4096", "--json")
    plan = json.loads(result.stdout)
    assert plan["gpu"]["decode"]["kind"] == "SplitKv"
    assert "cores are not known" in plan["gpu"]["text"]
    assert plan["cpu"]["partition"] >= 64
    text = run(*LARGE, "--context", "20000").stdout
    assert text.index("on a GPU ") < text.index("on this CPU ")


def test_prefill_and_latent_caches(run: Run) -> None:
    m5 = ("--cores", "10", "--family", "applegpu_g17g")
    result = run(*LARGE, "--context", "2048", "--new", "512", *m5, "--json")
    assert json.loads(result.stdout)["gpu"]["prefill"]["kind"] == "NaxPrefill"
    result = run(
        "doctor", "--plan", "--heads", "128,1,576,512", "--mla", "--context", "9000", *m5, "--json"
    )
    assert json.loads(result.stdout)["gpu"]["decode"]["kind"] == "Mla"


def test_the_environment_forces_the_plan(run: Run) -> None:
    def planned(**env: str) -> dict[str, object]:
        result = run(*LARGE, "--context", "20000", *M4_MAX, "--json", env=env)
        found: dict[str, object] = json.loads(result.stdout)["gpu"]["decode"]
        return found

    assert planned(PAMX_DISABLE_GQA_DECODE="1")["kind"] == "SplitKv"
    assert planned(PAMX_FORCE_PARTITION="1024")["partition"] == 1024
    result = run(*LARGE, "--context", "20000", *M4_MAX, env={"PAMX_FORCE_PARTITION": "24"})
    assert result.returncode == 1
    assert "24 tokens are forced" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("doctor", "--plan"), "needs --heads and --context"),
        (("doctor", "--heads", "32,8,128"), "needs --plan"),
        (("doctor", "--plan", "--heads", "32,8", "--context", "9"), "--heads"),
        ((*LARGE, "--context", "many"), "--context"),
        ((*LARGE, "--context", "0"), "--context"),
        ((*LARGE, "--context", "9,9", "--batch", "3"), "--batch"),
        ((*LARGE, "--context", "9", "--new", "10"), "--new"),
        ((*LARGE, "--context", "9", "--family", "M3"), "--family"),
        (("doctor", "--plan", "--heads", "32,7,128", "--context", "9"), "not a multiple of 7 KV"),
        (("doctor", "--plan", "--heads", "3" * 5000, "--context", "9"), "--heads"),
        ((*LARGE, "--context", "9", "--cores", "99999999999"), "--cores"),
        ((*LARGE, "--context", "9", "--window", "99999999999"), "--window"),
        ((*LARGE, "--context", "9", "--block-size", "99999999999"), "--block-size"),
        ((*LARGE, "--context", "9", "--block-size", "12"), "8, 16 or 32 tokens, not 12"),
        ((*LARGE, "--context", "1073741823", "--new", "1073741823"), "--new"),
    ],
)
def test_wrong_usage(run: Run, args: tuple[str, ...], said: str) -> None:
    result = run(*args)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("heads", "context", "more", "said"),
    [
        ("32,8,130", "9", (), "a head size is a multiple of 8 up to 256, not 130."),
        ("32,8,264", "9", (), "a head size is a multiple of 8 up to 256, not 264."),
        ("32,8,128,12", "9", (), "a head size is a multiple of 8 up to 256, not 12."),
        ("65537,1,128", "9", (), "a layer has at most 65,536 query heads, not 65,537."),
        ("99999999999,1,8", "9", (), "at most 65,536 query heads, not 99,999,999,999."),
        ("32,8,128", "99999999999", (), "at most 1,073,741,824 tokens, not 99,999,999,999."),
        ("32,8,128", "9,1073741825", (), "at most 1,073,741,824 tokens, not 1,073,741,825."),
        ("128,1,576", "9", ("--mla",), "but the latent part would have 576."),
        ("128,1,512,512", "9", ("--mla",), "but the rotary part would have 0."),
        ("128,2,576,512", "9", ("--mla",), "with --mla there is 1 KV head, not 2."),
        (
            *("32,8,128", "16777216", ("--new", "16777216", "--batch", "2")),
            "a step has at most 16,777,216 new tokens, not 33,554,432.",
        ),
    ],
)
def test_what_is_beyond_a_bound_is_wrong_usage(
    run: Run, heads: str, context: str, more: tuple[str, ...], said: str
) -> None:
    """One sentence, with the bound that applies."""
    arguments = ("doctor", "--plan", "--heads", heads, "--context", context, *more)
    result = run(*arguments, *M4_MAX)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("heads", "context"),
    [("65536,65536,256", "9"), ("32,8,128", str(2**30)), ("32,8,8", "9")],
)
def test_what_is_within_the_bounds_is_planned(run: Run, heads: str, context: str) -> None:
    result = run("doctor", "--plan", "--heads", heads, "--context", context, *M4_MAX)
    assert result.returncode == 0, result.stderr


def test_numbers_of_the_planner_are_written_like_all_others() -> None:
    text = "a 12345 of 1.25 GB, t2048_x4096, 1024 KiB, 1.3 MiB, 0.5 and 9437184."
    assert for_people(text) == (
        "a 12,345 of 1.25 GB, t2048_x4096, 1.05 MB, 1.36 MB, 0.5 and 9,437,184."
    )
