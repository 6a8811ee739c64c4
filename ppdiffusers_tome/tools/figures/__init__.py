"""How pictures and figures are shown: sheets of pictures, plots, records for VisualDL."""
