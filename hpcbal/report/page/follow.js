// A click on a job in a chart or table highlights it in all charts and tables; a second click ends that.
const marked = document.querySelectorAll("[data-job]");
let followed = null;
document.addEventListener("click", (event) => {
  const hit = event.target.closest("[data-job]");
  if (!hit && !event.target.closest("svg")) return;
  followed = hit && hit.dataset.job !== followed ? hit.dataset.job : null;
  document.body.classList.toggle("following", followed !== null);
  for (const element of marked) element.classList.toggle("on", element.dataset.job === followed);
});
const search = document.getElementById("search");
if (search) search.addEventListener("input", () => {
  const wanted = search.value.toLowerCase();
  for (const row of document.querySelectorAll("#jobs tbody tr"))
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
