/* Five questions at the end of a chapter. Each answer is a fold with its reason, so all
   can be read without this file; with it, the first choice counts, and the score is
   kept on this machine, for both frameworks together. */
document.addEventListener("DOMContentLoaded", () => {
  "use strict";
  const section = document.getElementById("five-questions");
  if (!section) return;
  const key = `questions-${location.pathname.replace(/^.*\/|_(jax|torch)\.html$/g, "")}`;
  const answers = [...section.querySelectorAll("details")];
  // The answers of one question follow each other; a paragraph asks the next one.
  const questions = [];
  for (const answer of answers) {
    if (answer.previousElementSibling?.tagName !== "DETAILS") questions.push([]);
    questions.at(-1).push(answer);
    const right = answer.querySelector("strong")?.textContent.startsWith("Right");
    answer.classList.add(right ? "right" : "wrong");
  }
  const line = document.createElement("p");
  line.className = "score";
  line.innerHTML = "<span role=status></span><button type=button>Start again</button>";
  let chosen = {}; // the first choice, by the number of the question
  try {
    const kept = JSON.parse(localStorage.getItem(key));
    if (kept instanceof Object) chosen = kept;
  } catch {} // storage is forbidden, or holds something else: nothing is remembered

  function keep() {
    try {
      localStorage.setItem(key, JSON.stringify(chosen));
    } catch {}
    const first = questions.map((question, number) => question[chosen[number]]).filter(Boolean);
    const right = first.filter((answer) => answer.classList.contains("right")).length;
    line.firstChild.textContent = `${right} of ${first.length} right at the first choice`;
    if (first.length) section.append(line);
    else line.remove();
  }
  questions.forEach((question, number) => {
    question.forEach((answer, place) => answer.querySelector("summary").addEventListener("click", () => {
      chosen[number] ??= place;
      keep();
    }));
    if (question[chosen[number]]) question[chosen[number]].open = true;
  });
  line.lastChild.addEventListener("click", () => {
    chosen = {};
    for (const answer of answers) answer.open = false;
    keep();
    answers[0].querySelector("summary").focus();
  });
  keep();
});
