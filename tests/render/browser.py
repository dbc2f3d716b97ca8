"""A real headless Chromium for the tests of pages, and a clear reason where there is none."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

# Nothing but the page under test: Chromium's own services would ask the network by themselves.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def paths() -> tuple[str, str]:
    """Chromium and its driver; skips the test where one of them, or the package that talks to it, is missing."""
    pytest.importorskip("selenium", reason="needs the package selenium")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    return browser, driver


class Browser:
    """One window; a page is opened from disk and asked what it shows."""

    def __init__(self) -> None:
        browser, driver = paths()
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_script_timeout(20)

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        self.media(dark=dark)
        self.width(width)
        self.driver.get(path.as_uri())

    def width(self, width: int, height: int = 900) -> None:
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)

    def media(self, *, dark: bool = False, kind: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": [scheme]})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[str]:
        """Text that is shown, of each element."""
        found = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => e.innerText)"
        return [*self.run(found, selector)]

    def text(self, selector: str) -> str:
        (only,) = self.all(selector)
        return only

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def settled(self) -> None:
        """Wait until what was typed is drawn."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def type(self, selector: str, text: str) -> None:
        from selenium.webdriver.common.keys import Keys

        self.find(selector).send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.BACKSPACE, text)
        self.settled()

    def choose(self, label: str) -> None:
        """Click one of several buttons by its label."""
        (found,) = [
            one for one in self.driver.find_elements("css selector", ".choice label") if one.text == label
        ]
        found.click()

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.keys import Keys

        for key in keys:
            self.driver.switch_to.active_element.send_keys(getattr(Keys, key, key))
        self.settled()

    def complaints(self) -> list[str]:
        """What the console said, and what was asked of any network, since the last time."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                if not url.startswith(("file:", "data:", "about:", "chrome:")):
                    said.append(f"request: {url}")
        return said

    def screenshot(self, path: Path, height: int | None = None) -> None:
        tall = height or self.run("return document.documentElement.scrollHeight")
        self.width(self.run("return innerWidth"), tall)
        self.settled()
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.driver.quit()
