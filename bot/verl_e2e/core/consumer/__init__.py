"""The training programs that drive Megatron-Bridge, one module of data and pure functions each."""
