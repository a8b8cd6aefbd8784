"""Everything that a person or a program is shown: cards, checks, plan text, JSON documents."""
