"""verl-e2e: plan, judge and report verl end-to-end coverage of Megatron-Bridge changes."""

__version__ = "0.1.0"
