"""Training of DIVERSED heads by policy gradient on texts of the pair."""
