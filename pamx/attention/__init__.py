"""What attention sees: steps, caches over pages, and the implementations behind them."""
