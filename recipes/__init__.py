"""Recipes: one Hydra configuration from raw data to a scored, sized model."""
