"""What the pages show: figures and tables, by the page that shows them."""
