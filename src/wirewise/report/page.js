"use strict";
(() => {
  const tip = document.getElementById("tip");
  const show = (text, event) => {
    tip.textContent = text;
    tip.style.display = "block";
    const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const y = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
    tip.style.left = x + "px";
    tip.style.top = y + "px";
  };
  const hide = () => { tip.style.display = "none"; };
  // Marks may come later than this script, so the page listens for all of them.
  let marked = false;
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("[data-tip]");
    if (mark) show(mark.dataset.tip, event);
    else if (marked) hide();
    marked = Boolean(mark);
  });
  for (const chart of document.querySelectorAll("svg")) {
    const dots = [];
    for (const line of chart.querySelectorAll("[data-points]")) {
      for (const dot of line.dataset.points.split(";")) {
        const [x, y, epoch, time, value] = dot.split(",");
        if (value === undefined) continue;
        const text = `${line.dataset.name}, epoch ${epoch}, ${time} s: ${line.dataset.what} ${value}`;
        dots.push({ x: +x, y: +y, text });
      }
    }
    if (!dots.length) continue;
    chart.addEventListener("pointermove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
      let best = null;
      let least = 40 * 40;
      for (const dot of dots) {
        const far = (dot.x - at.x) ** 2 + (dot.y - at.y) ** 2;
        if (far < least) { least = far; best = dot; }
      }
      if (best) show(best.text, event); else hide();
    });
    chart.addEventListener("pointerleave", hide);
  }
})();
