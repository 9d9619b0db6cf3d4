// A press on any picture that carries data-pick is reported with its value.
element.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-pick]");
  if (pressed && element.contains(pressed)) trigger("pick", { value: pressed.dataset.pick });
});
