// Submits a training and finds it in the list, with nothing but `fetch` and the types made from the API's document.
import type { components } from "./schema.js";

type Schemas = components["schemas"];
const [url, token, name, projectId, clusterId] = process.argv.slice(2) as [string, string, string, string, string];
const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };

const body: Schemas["TrainingCreation"] = { name, projectId, clusterId, spec: { image: "python:3.13" } };
const sent = await fetch(`${url}/api/v1/workloads/trainings`, { method: "POST", headers, body: JSON.stringify(body) });
if (sent.status !== 202) throw new Error(await sent.text());
const training = (await sent.json()) as Schemas["Training1"];
const sequence = sent.headers.get("X-Log-Sequence");

const listed = await fetch(`${url}/api/v1/workloads?min_seq=${sequence}`, { headers });
if (listed.status !== 200) throw new Error(await listed.text());
const list = (await listed.json()) as Schemas["WorkloadList"];
const names: string[] = list.workloads.filter((row) => row.id === training.workloadId).map((row) => row.name);
console.log(names.join());
