"""How long a test waits for something that it expects to end, before it calls it hung.

It only bounds a hang: a test that passes never waits for it, so a machine that is busy with other work is given time.
What is measured against a clock (a rate, a limit of ours) has a limit of its own, relative to a measurement beside it.
"""

HANG_S = 900.0
