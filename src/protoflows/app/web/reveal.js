// Where everything stands in one column, an explanation begins below what was pressed.
() => {
  const result = document.querySelector("#pf-explanation");
  if (result && window.innerWidth < 700) result.scrollIntoView({ behavior: "smooth" });
}
