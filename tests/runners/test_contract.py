"""What a wrapper reads from its environment, over the idioms that verl's wrappers use."""

import pytest

from tests.runners.world import WRAPPER
from verl_e2e_runner.launch.verl import check_variables, reads


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("X=${X:-1}", {"X"}),
        ("X=1\necho $X", set()),
        ("echo $X\nX=1", {"X"}),
        ("X='a b'\necho $X", set()),
        ('export X="a b"  # or $Y\necho $X', set()),
        ('export A="/w${A:+:${A}}"', {"A"}),
        ("A=$B:x\necho $A", {"B"}),
        ("A=${A:-$B}\nC=${C:-${D}}", {"A", "B", "C", "D"}),
        ('a=(x ${A} "${B:-y}")', {"A", "B"}),
        ("a=(\n  ${A}\n)\necho ${#a[@]} ${!N}", {"A", "N"}),
        ("LIST=${LIST:-['x','y']}", {"LIST"}),
        ("echo $((${A} * 2))", {"A"}),
        ("if [ $A = 1 ]; then\n    X=1\nfi\necho $X", {"A", "X"}),
        ("if t; then X=1; fi\necho $X", {"X"}),
        ('[ -z "$A" ] && A=1\necho $A', {"A"}),
        ("(X=1)\necho $X", {"X"}),
        ("X=1 command\necho $X", {"X"}),
        ("X=1 \\\ncommand\necho $X", {"X"}),
        (": ${X:=1}\necho $X", {"X"}),
        ("for x in $A; do echo $A; done", {"A"}),
        ("export A=${A:-1} B=2\necho $B", {"A", "B"}),
        ("cat <<EOF\n$A\nEOF", {"A"}),
        ("echo \"$B\" # 'not $A'", {"A", "B"}),
        ("echo x # $A", set()),
        ("# X=${X:-1}\n  # it's ${Y}", set()),
        ("f() {\n  echo $A\n  X=1\n}\nf\necho $X", {"A", "X"}),
    ],
)
def test_reads(script: str, names: set[str]) -> None:
    assert reads(script) == names


def test_a_wrapper_that_reads_everything_satisfies_the_contract() -> None:
    known, (finding,) = check_variables(WRAPPER, "run.sh", {"LORA_RANK": "4", "COMMON_TP": "2"})
    assert finding.ok
    assert {"LORA_RANK", "COMMON_TP", "VERL_USE_UV"} <= known


def test_a_renamed_variable_blocks_and_the_closest_name_is_offered() -> None:
    script = WRAPPER.replace("LORA_RANK", "LORA_R_ANK")
    _, (finding,) = check_variables(script, "run.sh", {"LORA_RANK": "4", "COMMON_TP": "2"})
    assert finding.blocking
    assert "does not read LORA_RANK (the job sets LORA_RANK=4)" in finding.summary
    assert "did you mean LORA_R_ANK" in finding.fix


def test_a_variable_that_the_wrapper_assigns_itself_is_not_read() -> None:
    script = WRAPPER.replace("LORA_RANK=${LORA_RANK:-0}", "LORA_RANK=8")
    _, (finding,) = check_variables(script, "run.sh", {"LORA_RANK": "4"})
    assert not finding.ok


def test_a_wrapper_older_than_the_uv_switch_gets_no_switch_and_a_note() -> None:
    script = WRAPPER.replace("VERL_USE_UV", "OTHER")
    _, findings = check_variables(script, "run.sh", {"VERL_USE_UV": "0", "LORA_RANK": "4"})
    assert [(finding.ok, finding.blocking) for finding in findings] == [(False, False), (True, True)]
    assert "VERL_USE_UV" in findings[0].summary
