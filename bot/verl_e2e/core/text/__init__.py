"""Text made safe to show: escaped, blocked off, redacted, and near names suggested."""
