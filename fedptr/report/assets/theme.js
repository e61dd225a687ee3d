"use strict";
// Light or dark: as the system says, until somebody chooses. In the head, so that nothing flashes.
const theme = {
  kept() { try { return localStorage.getItem("fedptr-theme"); } catch { return null; } },
  keep(name) { try { localStorage.setItem("fedptr-theme", name); } catch { /* it is asked for again next time */ } },
  system: matchMedia("(prefers-color-scheme: dark)"),
  get name() { return document.documentElement.dataset.theme || (this.system.matches ? "dark" : "light"); },
};
if (theme.kept()) document.documentElement.dataset.theme = theme.kept();
