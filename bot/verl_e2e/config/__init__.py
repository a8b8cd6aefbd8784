"""Files and environment variables that people write, read into checked values."""

from verl_e2e.config.policy import POLICY_PATH, load_policy, packaged_policy, policy_at
from verl_e2e.config.profiles import load_profile, packaged_profiles
from verl_e2e.config.validation import ConfigError, Problem, YamlDocument, load_yaml

__all__ = [
    "POLICY_PATH",
    "ConfigError",
    "Problem",
    "YamlDocument",
    "load_policy",
    "load_profile",
    "load_yaml",
    "packaged_policy",
    "packaged_profiles",
    "policy_at",
]
