// Calls /generate once and prints what came back, or the error, as one line of JSON.
// node generate.mjs ADDRESS ARGUMENTS-AS-JSON
import { Client } from "@gradio/client";

const [address, args] = process.argv.slice(2);
let answer;
try {
  const app = await Client.connect(address);
  const result = await app.predict("/generate", JSON.parse(args));
  const [file, seed, report] = result.data;
  const bytes = Buffer.from(await (await fetch(file.url)).arrayBuffer());
  answer = { name: file.orig_name, bytes: bytes.toString("base64"), seed, report };
} catch (error) {
  answer = { error: error.message };
}
process.stdout.write(JSON.stringify(answer) + "\n", () => process.exit(0));
