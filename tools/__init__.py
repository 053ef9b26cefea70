"""Programs for maintainers. Nothing of orl imports them."""
