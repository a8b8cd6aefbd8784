"""What a wrapper reads from its environment, over the idioms of bash."""

import pytest

from tests.runners.world import WRAPPER
from verl_e2e_runner.preflight.contract import check_contract, reads


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("X=${X:-1}", {"X"}),
        ("X=1\necho $X", set()),
        ("echo $X\nX=1", {"X"}),
        ('export A="/w${A:+:${A}}"', {"A"}),
        ("A=$B:x\necho $A", {"B"}),
        ("A=${A:-$B}\nC=${C:-${D}}", {"A", "B", "C", "D"}),
        ('a=(x ${A} "${B:-y}")', {"A", "B"}),
        ("a+=(1)", {"a"}),
        ("echo $((A * 2)) ; (( B > 1 )) && true", {"A", "B"}),
        ("if [ $A = 1 ]; then X=1; fi\necho $X", {"A", "X"}),
        ("if t; then X=1; else X=2; fi\necho $X", set()),
        ("if t; then X=1; elif u; then X=2; else X=3; fi\necho $X", set()),
        ("if t; then X=1; elif u; then Y=2; else X=3; fi\necho $X", {"X"}),
        ("case $A in x) X=1;; *) X=2;; esac\necho $X", {"A"}),
        ("case $A in x) X=1;; esac\necho $X", {"A", "X"}),
        ('[ -z "$A" ] && A=1\necho $A', {"A"}),
        ("true && X=1\necho $X", {"X"}),
        ("(X=1)\necho $X", {"X"}),
        ("X=1 command\necho $X", {"X"}),
        (": ${X:=1}\necho $X", {"X"}),
        ("read X\necho $X", set()),
        ("unset X\necho $X", set()),
        ("for x in $A; do echo $x; done", {"A"}),
        ("export A=${A:-1} B=2\necho $B", {"A"}),
        ("cat <<EOF\n$A\nEOF", {"A"}),
        ("cat <<'EOF'\n$A\nEOF", set()),
        ("echo '$A' \"$B\"", {"B"}),
        ("# X=${X:-1}\n", set()),
        ("f() { echo $A; X=1; }\nf\necho $X", {"A", "X"}),
    ],
)
def test_reads(script: str, names: set[str]) -> None:
    assert reads(script) == names


def test_a_wrapper_that_reads_everything_satisfies_the_contract() -> None:
    known, (finding,) = check_contract(WRAPPER, "run.sh", {"LORA_RANK": "4", "COMMON_TP": "2"}, droppable=())
    assert finding.ok
    assert {"LORA_RANK", "COMMON_TP", "VERL_USE_UV"} <= known


def test_a_renamed_variable_blocks_and_the_closest_name_is_offered() -> None:
    script = WRAPPER.replace("LORA_RANK", "LORA_R_ANK")
    _, (finding,) = check_contract(script, "run.sh", {"LORA_RANK": "4", "COMMON_TP": "2"}, droppable=())
    assert finding.blocking
    assert "does not read LORA_RANK (the job sets LORA_RANK=4)" in finding.summary
    assert "did you mean LORA_R_ANK" in finding.mend


def test_a_variable_that_the_wrapper_assigns_itself_is_not_read() -> None:
    script = WRAPPER.replace("LORA_RANK=${LORA_RANK:-0}", "LORA_RANK=8")
    _, (finding,) = check_contract(script, "run.sh", {"LORA_RANK": "4"}, droppable=())
    assert not finding.ok


def test_a_wrapper_older_than_the_uv_switch_gets_no_switch_and_a_remark() -> None:
    script = WRAPPER.replace("VERL_USE_UV", "OTHER")
    _, findings = check_contract(script, "run.sh", {"VERL_USE_UV": "0", "LORA_RANK": "4"}, droppable={"VERL_USE_UV"})
    assert [(finding.ok, finding.blocking) for finding in findings] == [(False, False), (True, True)]
    assert "VERL_USE_UV" in findings[0].summary


def test_where_the_grammar_does_not_follow_plain_defaults_still_count() -> None:
    script = "A=${A:-1}\nLIST=${LIST:-['x','y']}\nB=${B:-2}\n"
    assert reads(script) >= {"A", "LIST"}
    _, findings = check_contract(script, "run.sh", {"LIST": "[]", "GONE": "4"}, droppable=())
    assert "run.sh:2 cannot be read as bash" in findings[0].summary
    assert [finding.blocking for finding in findings] == [False, True]
    assert "does not read GONE" in findings[1].summary
