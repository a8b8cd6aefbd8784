"""SkyRL's side of a run: an entry point with a reward of ours, metrics in full, and what its parser says of settings.

`trainer.override_entrypoint=verl_e2e_skyrl` has SkyRL's `main_base` hand over to `main` here, which does what it would
do itself and registers one environment more. `python3 -m verl_e2e_skyrl` reads `[{"arguments": [...]}, ...]` on stdin
and prints a JSON list with, for each, `{"config": {...}}` or `{"error": ...}`: what SkyRL's own parser and its own
checks make of the arguments, as its entry point asks them.
"""

import contextlib
import json
import os
import sys

ENTRY = "trainer.override_entrypoint="
ENVIRONMENT = "digit_share"
METRICS_MARK = "[verl-e2e] metrics of step "
_BACKEND = "skyrl.backends.skyrl_train"
# What `verl_e2e_fingerprints` wraps, with the hooks of `verl_e2e_skyrl_hooks`.
TARGETS = {
    f"{_BACKEND}.workers.megatron.megatron_worker": (
        ("MegatronPolicyWorkerBase", {"init_model": "initialize", "optim_step": "optimizer_step"}),
        ("MegatronRefWorkerBase", {"init_model": "initialize"}),
        ("MegatronWeightExtractor", {"extract_weights": "get_per_tensor_param"}),
        # What the provider calls for it, where verl calls `AutoBridge.load_hf_weights`.
        (
            "megatron.bridge.models.conversion.model_bridge:MegatronModelBridge",
            {"load_weights_hf_to_megatron": "load_hf_weights"},
        ),
    ),
    f"{_BACKEND}.distributed.megatron.megatron_strategy": (
        ("MegatronStrategy", {"save_checkpoint": "save_checkpoint", "load_checkpoint": "load_checkpoint"}),
    ),
    f"{_BACKEND}.inference_servers.layerwise_reload": (
        (
            "LayerwiseReloadWorkerMixin",
            {"skyrl_start_weight_update": "begin_update", "skyrl_finish_weight_update": "update_weights_from_ipc"},
        ),
    ),
    f"{_BACKEND}.inference_servers.new_inference_worker_wrap": (
        ("NewInferenceWorkerWrap", {"update_weights_ipc": "update_weights", "update_weights_nccl": "update_weights"}),
    ),
}


def main():
    """What `skyrl.train.entrypoints.main_base` does without an override, with an experiment of ours."""
    import ray
    from skyrl.train.utils.utils import initialize_ray

    config = _parsed(sys.argv[1:])
    initialize_ray(config)
    ray.get(ray.remote(num_cpus=1)(skyrl_entrypoint).remote(config))


def skyrl_entrypoint(config):
    """The training loop, in a process that Ray calls by this name, which is that of SkyRL's own."""
    import verl_e2e_fingerprints

    verl_e2e_fingerprints.wrap_nothing()
    from skyrl.train.entrypoints.main_base import BasePPOExp

    class Experiment(BasePPOExp):
        def get_train_dataset(self):
            # Rows may name an environment whose reward no random model gets.
            dataset = super().get_train_dataset()
            dataset.env_class_key = "the environment of every job"
            return dataset

        def get_eval_dataset(self):
            dataset = super().get_eval_dataset()
            if dataset is not None:
                dataset.env_class_key = "the environment of every job"
            return dataset

        def get_tracker(self):
            tracker = super().get_tracker()
            log = tracker.log

            def say_and_log(data, step, *args, **kwargs):
                with contextlib.suppress(Exception):
                    say_metrics(data, step)
                return log(data, step, *args, **kwargs)

            tracker.log = say_and_log
            return tracker

    register()
    Experiment(config).run()


def _parsed(arguments):
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    config = SkyRLTrainConfig.from_cli_overrides([item for item in arguments if not item.startswith(ENTRY)])
    validate_cfg(config)
    return config


def register():
    """Make the environment known in this process: its reward is one that any model's answers differ in."""
    import runpy

    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

    here = os.path.dirname(os.path.abspath(__file__))
    digit_share = runpy.run_path(os.path.join(os.path.dirname(here), "rewards.py"))["digit_share"]

    class DigitShare(BaseTextEnv):
        def __init__(self, **_):
            super().__init__()

        def step(self, action):
            reward = digit_share("", action, None)
            return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})

    if ENVIRONMENT not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id=ENVIRONMENT, entry_point=DigitShare)


def say_metrics(data, step):
    """Print the numbers of a step on one line; SkyRL itself prints four decimals on many."""
    numbers = {}
    for name, value in data.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError):
            continue
    print(f"{METRICS_MARK}{int(step)}: {json.dumps(numbers)}", flush=True)


def answers(requests):
    """For each request the configuration that SkyRL makes of its arguments, or why it refuses them."""
    import dataclasses

    found = []
    for request in requests:
        try:
            found.append({"config": dataclasses.asdict(_parsed(request["arguments"]))})
        except Exception as error:
            found.append({"error": f"{type(error).__name__}: {error}"[:1500]})
    return found


if __name__ == "__main__":
    try:
        import skyrl.train.config  # noqa: F401
    except ImportError as missing:
        print(missing, file=sys.stderr)
        sys.exit(3)
    print(json.dumps(answers(json.load(sys.stdin)), default=str))
