// All frames are there already: the slider shows one and hides the others, without the server.
element.addEventListener("input", (event) => {
  const slider = event.target.closest("input[type=range]");
  if (!slider) return;
  const way = slider.closest(".pf-way");
  way.querySelectorAll("[data-frame]").forEach((part) => {
    part.hidden = part.dataset.frame !== slider.value;
  });
  const share = (100 * slider.value) / slider.max;
  way.querySelectorAll(".pf-cursor").forEach((line) => {
    line.style.left = `${share}%`;
  });
  // A new draw comes back at the radius that is seen now.
  way.querySelectorAll("[data-with-frame]").forEach((button) => {
    button.dataset.pick = `${button.dataset.withFrame}-${slider.value}`;
  });
  const seen = way.querySelector("[data-frame]:not([hidden]) p");
  if (seen) slider.setAttribute("aria-valuetext", seen.textContent);
});
// New pictures come with one of them seen, but the slider stays where the hand has left it.
new MutationObserver(() => {
  element.querySelectorAll(".pf-way").forEach((way) => {
    const seen = way.querySelector("[data-frame]:not([hidden])");
    const slider = way.querySelector("input[type=range]");
    if (seen && slider) slider.value = seen.dataset.frame;
  });
}).observe(element, { childList: true, subtree: true, attributes: true, attributeFilter: ["hidden"] });
