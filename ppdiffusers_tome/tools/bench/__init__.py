"""What ``ppdiffusers-tome bench`` measures. The numbers count as ratios within one run, never as times."""
