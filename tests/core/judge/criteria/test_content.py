"""Level 4: what shows that images or sound reached the actor's model in training, and that a tower for them ran."""

import pytest

from tests.core.builders import make_case, make_facts, make_record
from tests.core.level_runs import job_of
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.features import CONTENTS, content_active, feature_active
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.fingerprints import Fingerprints, GivenInput, HookState, ModelInputs, Tower
from verl_e2e.core.model.jobs import PICTURES, Data, JobFeature
from verl_e2e.core.model.levels import Level

GSM8K = Data(train_files="train.parquet", val_files="test.parquet")
PIXELS = GivenInput(name="pixel_values", shape=(48, 1176), calls=6, training_calls=2)
VISUAL = Tower(name="visual", type="Qwen2_5_VisionTransformerPretrainedModel", calls=6, training_calls=2)


def line(*given: GivenInput, towers: tuple[Tower, ...] = (), model: str = "actor", number: int = 0) -> ModelInputs:
    return ModelInputs(model=model, pid=7, t_s=float(number), number=number, inputs=given, towers=towers)


def case_of(
    *lines: ModelInputs, recorded: bool = True, data: Data = PICTURES, hooks: tuple[HookState, ...] = ()
) -> Case:
    job = job_of(Level.FEATURE, "feature", features=(JobFeature(name="vlm"),), data=data)
    found = Fingerprints(inputs=lines, hooks=hooks) if recorded else None
    return make_case(make_record(job=job, fingerprints=found), make_facts())


def test_pixels_in_training_and_a_tower_that_ran_show_images() -> None:
    found = feature_active(case_of(line(PIXELS, towers=(VISUAL,))))
    assert (found.state, found.file) == (State.MET, "fingerprints.jsonl")
    assert found.excerpt == "pixel_values [48 x 1176] in 2 forward passes, visual in 2"
    assert found.summary.startswith("vlm: pixel_values reached the actor in training, and its visual (Qwen2_5_Vision")


def test_lines_count_from_the_start_so_the_last_one_of_a_rank_says_most() -> None:
    later = line(PIXELS.model_copy(update={"training_calls": 5}), towers=(VISUAL,), number=1)
    other_rank = line(towers=())
    assert "in 5 forward passes" in content_active(case_of(line(PIXELS), later, other_rank), "vlm").excerpt


@pytest.mark.parametrize(
    ("lines", "words"),
    (
        ((), "the actor was given no images in training"),
        ((line(towers=(VISUAL,)),), "the actor was given no images in training"),
        ((line(PIXELS, towers=(VISUAL,), model="critic"),), "the actor was given no images in training"),
        (
            (line(PIXELS.model_copy(update={"training_calls": 0}), towers=(VISUAL,)),),
            "the actor was given no images in training",
        ),
        ((line(PIXELS),), "the actor was given pixel_values, but it has no tower for them"),
        (
            (line(PIXELS, towers=(Tower(name="audio_tower", training_calls=2),)),),
            "the actor was given pixel_values, but it has no tower for them",
        ),
        (
            (line(PIXELS, towers=(VISUAL.model_copy(update={"training_calls": 0}),)),),
            "but its visual (Qwen2_5_VisionTransformerPretrainedModel) never ran in training",
        ),
    ),
)
def test_anything_less_is_missing(lines: tuple[ModelInputs, ...], words: str) -> None:
    found = feature_active(case_of(*lines))
    assert found.state is State.MISSING
    assert words in found.summary


def test_a_hook_that_was_not_installed_explains_what_is_missing() -> None:
    hook = HookState(pid=7, target="engine:MegatronEngine.initialize", installed=False, problem="it is not there")
    assert "MegatronEngine.initialize: it is not there" in feature_active(case_of(hooks=(hook,))).summary


@pytest.mark.parametrize("data", (PICTURES, GSM8K))
def test_without_a_record_nothing_shows_that_images_reached_the_model(data: Data) -> None:
    found = feature_active(case_of(recorded=False, data=data))
    assert found.state is State.MISSING
    assert "nothing shows whether images reached the model in training" in found.summary


def test_sound_is_never_shown_by_images() -> None:
    assert content_active(case_of(line(PIXELS, towers=(VISUAL,))), "audio").state is State.MISSING
    spoken = line(
        GivenInput(name="input_features", training_calls=1), towers=(Tower(name="audio_tower", training_calls=1),)
    )
    assert content_active(case_of(spoken), "audio").state is State.MET
    assert content_active(case_of(recorded=False), "audio").state is State.MISSING


def test_no_input_and_no_tower_counts_for_two_contents() -> None:
    assert not CONTENTS["vlm"].inputs & CONTENTS["audio"].inputs
    assert not {*CONTENTS["vlm"].towers} & {*CONTENTS["audio"].towers}
