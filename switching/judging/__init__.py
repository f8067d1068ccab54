"""Choosing among models and judging them: scores of forecasts, residuals, selection, backtests, diagnoses."""
