//go:build e2e

package e2e

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

var _ = Describe("the safety of a real agent's work", Label("agents"), func() {
	w := newWorld()

	It("keeps its key out of objects, logs, history and gitstore", Label("slow"), func(ctx SpecContext) {
		began := time.Now()
		var keys []string
		for _, a := range realAgents() {
			m := w.newModel(ctx, a.name, script{Steps: 5, Commands: printsKey(a.keyEnv)}) // the last step writes a line
			keys = append(keys, m.key)
			w.create(ctx, w.agentTask(ctx, a.name, a, m))
		}
		for _, a := range realAgents() {
			w.untilState(ctx, a.name, 4*time.Minute, clewv1.ReasonCompleted)
			w.untilRecorded(ctx, a.name)
			entries := w.conversation(ctx, a.name)
			Expect(stepsOf(entries)).To(Equal(upTo(5)), "%s: the agent ran every step, and so had the key: the stub accepts no other", a.name)
			for step := 1; step <= 4; step++ {
				Expect(outputOf(entries, step)).To(ContainSubstring("[masked]"), "%s: the key that step %d printed is masked", a.name, step)
			}
		}

		places := map[string]string{
			"objects":   w.kubectl(ctx, "get", "tasks.clew.dev,checkpoints,conversationsnapshots,forks,pods,pvc,events", "-o", "yaml"),
			"clew logs": w.systemLogs(ctx, began),
		}
		for _, a := range realAgents() {
			task := w.task(ctx, a.name)
			places["logs of "+a.name] = w.kubectl(ctx, "logs", task.Status.Attempts[0].PodName, "--all-containers")
			places["history of "+a.name] = fmt.Sprint(w.conversation(ctx, a.name))
			places["timeline of "+a.name] = fmt.Sprint(w.timeline(ctx, a.name))
			places["export of "+a.name] = w.plugin(ctx, "task", "export", a.name)
		}
		for place, text := range places {
			Expect(text).NotTo(BeEmpty(), place)
			for _, form := range formsOf(keys) {
				Expect(strings.Count(text, form)).To(BeZero(), "%s: %s", place, form)
			}
		}
		// The same search finds a line that is there.
		Expect(w.inDatabase(ctx, formsOf([]string{beginning}))).NotTo(Equal("0"))
		Expect(w.inRepository(ctx, []string{"line of 5"})).NotTo(Equal("0"))
		Expect(w.inDatabase(ctx, formsOf(keys))).To(Equal("0"), "lines of a dump of the database")
		Expect(w.inRepository(ctx, formsOf(keys))).To(Equal("0"), "lines of the objects in the gitstore")
	})

	It("includes a checkpoint before a risky call, which brings back what the call removed", func(ctx SpecContext) {
		claude := claude()
		m := w.runs(ctx, "risky", claude, script{Steps: 6, Commands: map[int]string{5: "rm -rf src"}}, func(task *clewv1.Task) {
			task.Spec.CheckpointPolicy.EveryToolCalls = nil // the default is more than the script has
		})

		var before *clewv1.Checkpoint
		for _, c := range w.untilListed(ctx, "risky") {
			if c.Status.Trigger == clewv1.TriggerBeforeRiskyTool {
				Expect(before).To(BeNil(), "one call, one checkpoint")
				before = &c
			}
		}
		Expect(before).To(HaveValue(HaveField("Status.RiskyTool", HaveValue(SatisfyAll(
			HaveField("Guarantee", clewv1.RiskyToolBefore), HaveField("Name", "Bash"))))))
		entries := w.conversation(ctx, "risky")
		for _, e := range entries {
			if e.ToolResult != nil && e.ToolResult.CallID == before.Status.RiskyTool.CallID {
				Expect(before.Status.Time.Time).To(BeTemporally("<=", e.Time.Time), "it was taken before the tool had run")
			}
		}
		git := "git -c safe.directory='*' --git-dir /var/lib/clew-gitstore/namespaces/" + w.namespace + "/" + daemonapi.RepositoryKey("") + ".git "
		Expect(w.inGitstore(ctx, git+"ls-tree -r --name-only "+before.Status.Commit)).To(ContainSubstring("src/file4.txt"), "its tree has the file that the tool removed")

		m.script(ctx, script{Steps: 6, Commands: map[int]string{5: "ls src", 6: "ls src"}})
		rewind := clewv1.Rewind{ID: "undo", To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: before.Name}}}
		w.patchSpec(ctx, "risky", map[string]any{"rewind": rewind})
		w.untilRewound(ctx, "risky", "undo", 2*time.Minute)
		w.resumed(ctx, "risky", "look", "Go on, with care.", &rewind, m)
		// Agents differ in whether they count the call in which they were stopped as done.
		after := w.conversation(ctx, "risky")
		Expect(outputOf(after, 5)+outputOf(after, 6)).To(ContainSubstring("file2.txt\nfile4.txt"), "the rewind has brought src back")
	})
})

// plugin runs kubectl clew in the world's namespace.
func (w *world) plugin(ctx context.Context, args ...string) string {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"clew", "--namespace", w.namespace}, args...)...)
	out, err := cmd.Output()
	Expect(err).NotTo(HaveOccurred(), "kubectl clew %s\n%s", strings.Join(args, " "), out)
	return string(out)
}

// printsKey makes an agent print its key in four steps, each in a different form.
func printsKey(keyEnv string) map[int]string {
	key := "printenv " + keyEnv
	return map[int]string{
		1: key,
		2: key + " | tr -d '\\n' | base64 -w0; echo",
		3: key + " > key.txt; " + key + " >&2",
		4: key + " | base64; " + key + " | base64 -w 20; " + key + " | rev",
	}
}

// formsOf returns the forms of the keys: as they are and reversed, in hexadecimal
// digits, and in base64 in one line and in the full lines of several.
func formsOf(keys []string) []string {
	var forms []string
	for _, key := range keys {
		reversed := []byte(key)
		slices.Reverse(reversed)
		encoded := strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(key)), "=")
		forms = append(forms, key, string(reversed), hex.EncodeToString([]byte(key)), encoded)
		for _, width := range []int{20, 76} {
			for line := range slices.Chunk([]byte(encoded), width) {
				if len(line) == width {
					forms = append(forms, string(line))
				}
			}
		}
	}
	return forms
}

// systemLogs returns the logs of Clew's own pods.
func (w *world) systemLogs(ctx context.Context, since time.Time) string {
	GinkgoHelper()
	var logs strings.Builder
	for _, component := range []string{"manager", "server", "gitstore", "postgres"} {
		logs.WriteString(w.kubectl(ctx, "--namespace", systemNamespace, "logs", "-l", "app.kubernetes.io/component="+component,
			"--all-containers", "--tail=-1", "--since-time="+since.UTC().Format(time.RFC3339)))
	}
	return logs.String()
}

// inDatabase counts the lines of a dump of Postgres that contain one of the texts.
func (w *world) inDatabase(ctx context.Context, texts []string) string {
	GinkgoHelper()
	return w.countIn(ctx, "statefulset/clew-postgres", "pg_dump --host /run/clew --username clew clew", texts)
}

// inRepository counts the lines that contain one of the texts, in all objects of the
// gitstore's repository for tasks without an origin.
func (w *world) inRepository(ctx context.Context, texts []string) string {
	GinkgoHelper()
	repository := "/var/lib/clew-gitstore/namespaces/" + w.namespace + "/" + daemonapi.RepositoryKey("") + ".git"
	return w.countIn(ctx, "statefulset/clew-gitstore", "git -c safe.directory='*' --git-dir "+repository+" cat-file --batch-all-objects --batch", texts)
}

// countIn runs a command in one of Clew's workloads and counts the lines of its output
// that contain one of the texts; the output must not be empty.
func (w *world) countIn(ctx context.Context, workload, command string, texts []string) string {
	GinkgoHelper()
	script := fmt.Sprintf(`set -eu; %s > /tmp/lines; test -s /tmp/lines; grep --text --count --fixed-strings --file=- /tmp/lines || true; rm /tmp/lines`, command)
	out, err := w.kubectlIn(ctx, []byte(strings.Join(texts, "\n")), "--namespace", systemNamespace, "exec", "-i", workload, "--", "sh", "-c", script)
	Expect(err).NotTo(HaveOccurred(), "in %s\n%s", workload, out)
	return strings.TrimSpace(out)
}
