"""A headless Chromium for the tests of the site: it keeps what its pages log and ask
for.
"""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

# The folder of the site: set by `make test-site`
SITE = os.environ.get("LSTM_KERNELS_SITE")
needs_site = pytest.mark.skipif(
    not SITE, reason="`make test-site` runs these, in Chromium"
)
# Debian's Chromium asks nobody for anything but the pages.
QUIET = "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
QUIET += "--disable-background-networking --disable-component-update --disable-sync "
QUIET += "--disable-dev-shm-usage --hide-scrollbars"


class Browser:
    """Chromium, driven by selenium; `driver` is selenium's."""

    def __init__(self, driver):
        self.driver = driver
        self.run = driver.execute_script

    def open(self, path, *, width=1100, dark=False, scripts=True):
        """Show the page of a file in a window of so many pixels."""
        command = self.driver.execute_cdp_cmd
        command("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1}
        screen["mobile"] = width < 600
        command("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        command("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(Path(path).resolve().as_uri())

    def logged(self):
        """Warnings and errors on the console since the last call."""
        entries = self.driver.get_log("browser")
        return [one["message"] for one in entries if one["level"] != "INFO"]

    def requested(self):
        """The addresses asked for since the last call, but for data in them."""
        entries = self.driver.get_log("performance")
        sent = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [one for one in sent if one["method"] == "Network.requestWillBeSent"]
        urls = [one["params"]["request"]["url"] for one in sent]
        return [url for url in urls if not url.startswith("data:")]


@contextmanager
def chromium():
    """Start Chromium, and end it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for option in QUIET.split():
        options.add_argument(option)
    options.binary_location = shutil.which("chromium")
    logs = {"browser": "ALL", "performance": "ALL"}
    options.set_capability("goog:loggingPrefs", logs)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
