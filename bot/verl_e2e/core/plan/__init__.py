"""Which levels a change needs and why, which jobs prove them, and which Bridge tests go with it."""
