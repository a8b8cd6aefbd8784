"""`related.json`: what an earlier version wrote is read."""

import json

from verl_e2e.core.model.related import Related, Role

OLD = {
    "schema": 1,
    "runs": [
        {
            "role": "merge_base",
            "job_id": "0-lora-ddp",
            "job_digest": "d" * 64,
            "bridge_commit": "b" * 40,
            "folder": "related/merge_base",
            "result": "Fail",
            "stage": "peft",
            "signature": ["no_exception: ValueError"],
        }
    ],
    "not_run": {},
}


def test_a_document_of_schema_1_keeps_what_identifies_a_failure() -> None:
    read = Related.model_validate(OLD)
    assert read.runs[0].fingerprint == ("no_exception: ValueError",)
    new = json.loads(read.model_copy(update={"schema_": 2}).model_dump_json())
    assert "signature" not in new["runs"][0]
    assert Related.model_validate(new).runs == read.runs


def test_the_role_of_the_unsharded_run_is_read_by_the_word_of_schema_1() -> None:
    runs = [{**OLD["runs"][0], "role": "trivial_sizes"}]  # type: ignore[index]
    read = Related.model_validate({**OLD, "runs": runs, "not_run": {"trivial_sizes": "interrupted"}})
    assert (read.runs[0].role, read.not_run) == (Role.UNSHARDED, {Role.UNSHARDED: "interrupted"})
    assert read.model_dump(mode="json")["runs"][0]["role"] == "unsharded"
