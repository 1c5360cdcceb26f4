//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

func TestTheKeyOfAnAgentIsFoundNowhere(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	began := time.Now()
	var keys []string
	for _, a := range realAgents {
		m := w.newModel(a.name, script{Steps: 5, Commands: printsKey(a.keyEnv)}) // the last step writes a line
		keys = append(keys, m.key)
		w.create(w.agentTask(a.name, a, m))
	}
	for _, a := range realAgents {
		w.untilState(a.name, 4*time.Minute, clewv1.ReasonCompleted)
		w.untilSettled(a.name)
		entries := w.conversation(a.name)
		g.Expect(stepsOf(entries)).To(gomega.Equal(upTo(5)), "%s: the stub takes only the task's own key, so the agent had it", a.name)
		for step := 1; step <= 4; step++ {
			g.Expect(outputOf(entries, step)).To(gomega.ContainSubstring("[masked]"), "%s: where the agent printed it, it is masked: step %d", a.name, step)
		}
	}

	places := map[string]string{
		"objects":   w.kubectl("get", "tasks.clew.dev,checkpoints,conversationsnapshots,forks,pods,pvc,events", "-o", "yaml"),
		"clew logs": w.systemLogs(began),
	}
	for _, a := range realAgents {
		task := w.task(a.name)
		places["logs of "+a.name] = w.kubectl("logs", task.Status.Attempts[0].PodName, "--all-containers")
		places["history of "+a.name] = fmt.Sprint(w.conversation(a.name))
		places["timeline of "+a.name] = fmt.Sprint(w.timeline(a.name))
		places["export of "+a.name] = w.plugin("task", "export", a.name)
	}
	for place, text := range places {
		g.Expect(text).NotTo(gomega.BeEmpty(), place)
		for _, form := range formsOf(keys) {
			g.Expect(strings.Count(text, form)).To(gomega.BeZero(), "%s: %s", place, form)
		}
	}
	// What is there can be found in this way.
	g.Expect(w.inDatabase(formsOf([]string{beginning}))).NotTo(gomega.Equal("0"))
	g.Expect(w.inRepository([]string{"line of 5"})).NotTo(gomega.Equal("0"))
	g.Expect(w.inDatabase(formsOf(keys))).To(gomega.Equal("0"), "lines of a dump of the database")
	g.Expect(w.inRepository(formsOf(keys))).To(gomega.Equal("0"), "lines of the objects in the gitstore")
}

// plugin runs kubectl clew in the test's namespace.
func (w *world) plugin(args ...string) string {
	w.Helper()
	cmd := exec.CommandContext(w.ctx, "kubectl", append([]string{"clew", "--namespace", w.namespace}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("kubectl clew %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// printsKey has an agent print its key in four steps, in each otherwise.
func printsKey(keyEnv string) map[int]string {
	key := "printenv " + keyEnv
	return map[int]string{
		1: key,
		2: key + " | tr -d '\\n' | base64 -w0; echo",
		3: key + " > key.txt; " + key + " >&2",
		4: key + " | base64; " + key + " | base64 -w 20; " + key + " | rev",
	}
}

// formsOf the keys: as they are and reversed, in hexadecimal digits, and in base64
// in one line and in the whole lines of several.
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

// systemLogs are what Clew's own pods have logged.
func (w *world) systemLogs(since time.Time) string {
	w.Helper()
	var logs strings.Builder
	for _, component := range []string{"manager", "server", "gitstore", "postgres"} {
		logs.WriteString(w.kubectl("--namespace", systemNamespace, "logs", "-l", "app.kubernetes.io/component="+component,
			"--all-containers", "--tail=-1", "--since-time="+since.UTC().Format(time.RFC3339)))
	}
	return logs.String()
}

// inDatabase counts the lines of a dump of Postgres that hold one of the texts.
func (w *world) inDatabase(texts []string) string {
	w.Helper()
	return w.countIn("statefulset/clew-postgres", "pg_dump --host /run/clew --username clew clew", texts)
}

// inRepository counts the lines of all objects of the gitstore's repository for
// tasks without one that hold one of the texts.
func (w *world) inRepository(texts []string) string {
	w.Helper()
	repository := "/var/lib/clew-gitstore/namespaces/" + w.namespace + "/" + daemonapi.RepositoryKey("") + ".git"
	return w.countIn("statefulset/clew-gitstore", "git -c safe.directory='*' --git-dir "+repository+" cat-file --batch-all-objects --batch", texts)
}

// countIn runs a command in a workload of Clew's and counts the lines of its
// output that hold one of the texts; the output must have some.
func (w *world) countIn(workload, command string, texts []string) string {
	w.Helper()
	script := fmt.Sprintf(`set -eu; %s > /tmp/lines; test -s /tmp/lines; grep --text --count --fixed-strings --file=- /tmp/lines || true; rm /tmp/lines`, command)
	out, err := w.kubectlIn(w.ctx, []byte(strings.Join(texts, "\n")), "--namespace", systemNamespace, "exec", "-i", workload, "--", "sh", "-c", script)
	if err != nil {
		w.Fatalf("in %s: %v\n%s", workload, err, out)
	}
	return strings.TrimSpace(out)
}

func TestBeforeARiskyCallACheckpointIsTaken(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	claude := realAgents[0]
	m := w.runs("risky", claude, script{Steps: 6, Commands: map[int]string{5: "rm -rf src"}}, func(task *clewv1.Task) {
		task.Spec.CheckpointPolicy.EveryToolCalls = nil // its default is more than the script has
	})

	var before *clewv1.Checkpoint
	for _, c := range w.untilListed("risky") {
		if c.Status.Trigger == clewv1.TriggerBeforeRiskyTool {
			g.Expect(before).To(gomega.BeNil(), "one call, one checkpoint")
			before = &c
		}
	}
	g.Expect(before).NotTo(gomega.BeNil())
	entries := w.conversation("risky")
	g.Expect(before.Status.RiskyTool.Guarantee).To(gomega.Equal(clewv1.RiskyToolBefore))
	g.Expect(before.Status.RiskyTool.Name).To(gomega.Equal("Bash"))
	for _, e := range entries {
		if e.ToolResult != nil && e.ToolResult.CallID == before.Status.RiskyTool.CallID {
			g.Expect(before.Status.Time.Time).To(gomega.BeTemporally("<=", e.Time.Time), "it was taken before the tool had run")
		}
	}
	git := "git -c safe.directory='*' --git-dir /var/lib/clew-gitstore/namespaces/" + w.namespace + "/" + daemonapi.RepositoryKey("") + ".git "
	g.Expect(w.inGitstore(git+"ls-tree -r --name-only "+before.Status.Commit)).To(gomega.ContainSubstring("src/file4.txt"), "its tree has what the tool removed")

	m.script(script{Steps: 6, Commands: map[int]string{5: "ls src", 6: "ls src"}})
	rewind := clewv1.Rewind{ID: "undo", To: clewv1.RewindTarget{CheckpointRef: &clewv1.NameReference{Name: before.Name}}}
	w.patchSpec("risky", map[string]any{"rewind": rewind})
	w.untilRewound("risky", "undo", 2*time.Minute)
	w.resumed("risky", "look", "Go on, with care.", &rewind, m)
	// Whether the agent takes the call that it was stopped in for done is its own matter.
	after := w.conversation("risky")
	g.Expect(outputOf(after, 5)+outputOf(after, 6)).To(gomega.ContainSubstring("file2.txt\nfile4.txt"), "the rewind has brought src back")
}
