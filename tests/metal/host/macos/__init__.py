"""Cross-compiling native/ for macOS, where Apple's SDK is not."""
