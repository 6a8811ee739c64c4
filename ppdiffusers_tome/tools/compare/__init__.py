"""Images unmerged and with settings, their measurements, and one report."""
