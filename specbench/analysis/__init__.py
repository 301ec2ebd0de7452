"""Analysis: from the tables of finished runs to intervals, summaries and Pareto fronts."""
