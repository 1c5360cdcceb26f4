//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// manyFiles makes 500 files, which a rewind to before has to remove.
const manyFiles = `cd /workspace; mkdir many; for i in $(seq 500); do echo $i > many/$i; done`

var _ = Describe("the preview of a rewind", func() {
	w := newWorld()

	It("says file by file what then happens, and what an undo takes back", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		w.create(ctx, w.newTask("careful", idle...))
		w.take(ctx, "careful", "good")
		good := w.inAgent(ctx, "careful", worktreeTree)
		w.inAgent(ctx, "careful", everyChange+manyFiles)
		bad := w.inAgent(ctx, "careful", worktreeTree)

		By("asking while the agent works")
		begin := time.Now()
		preview := w.previews(ctx, "careful", "checkpointRef=good&limit=1000")
		AddReportEntry("a preview of 500 files of a running task", time.Since(begin).String())
		Expect(preview.Files.Totals.Files).To(BeNumerically(">", 500))
		Expect(preview.Files.From.Type).To(Equal(historyv1.MomentLive))
		Expect(preview.Stops).NotTo(BeNil())
		Expect(w.inAgent(ctx, "careful", worktreeTree)).To(Equal(bad), "the preview changed nothing")

		By("rewinding")
		w.plugin(ctx, "rewind", "careful", "--to", "good", "--yes")
		Expect(w.inAgent(ctx, "careful", worktreeTree)).To(Equal(good))
		Expect(changesOf(preview.Files.Items)).To(Equal(w.changed(ctx, "careful", bad, good)), "file by file")

		By("undoing it, and undoing the undo")
		w.plugin(ctx, "undo", "careful", "--yes")
		Expect(w.inAgent(ctx, "careful", worktreeTree)).To(Equal(bad))
		w.plugin(ctx, "undo", "careful", "--yes")
		Expect(w.inAgent(ctx, "careful", worktreeTree)).To(Equal(good))
	})
})

var _ = Describe("a volume that somebody changed while its task was suspended", func() {
	w := newWorld()

	It("waits for a decision, and each decision is carried out", SpecTimeout(10*time.Minute), func(ctx SpecContext) {
		w.create(ctx, w.newTask("drifting", idle...))
		w.take(ctx, "drifting", "good")
		readme := w.inAgent(ctx, "drifting", "cat /workspace/README.md")
		suspendAndEdit := func(text string) {
			GinkgoHelper()
			w.patchSpec(ctx, "drifting", map[string]any{"operatingMode": "Suspended"})
			w.untilState(ctx, "drifting", 3*time.Minute, clewv1.ReasonSuspended)
			file := filepath.Join(w.volumeFolder(ctx, w.namespace, "drifting-workspace"), "worktree", "README.md")
			Expect(os.WriteFile(file, []byte(text), 0o644)).To(Succeed())
		}

		suspendAndEdit("by hand\n")
		w.patchSpec(ctx, "drifting", map[string]any{"operatingMode": "Running", "resume": map[string]any{"id": "first"}})
		drift := w.untilState(ctx, "drifting", 3*time.Minute, clewv1.ReasonDriftDetected).Status.Drift
		Expect(drift).To(HaveValue(And(HaveField("FileCount", int64(1)), HaveField("Commit", Not(BeEmpty())),
			HaveField("Files", HaveExactElements(clewv1.ChangedFile{Path: "README.md", Action: clewv1.FileModified})))))
		Expect(w.plugin(ctx, "drift", "drifting")).To(And(ContainSubstring("--- a/README.md"), ContainSubstring("\n+by hand\n")))

		By("keeping the changes")
		w.plugin(ctx, "resume", "drifting", "--on-drift", "preserve")
		Expect(w.inAgent(ctx, "drifting", "cat /workspace/README.md")).To(Equal("by hand\n"))

		By("discarding others")
		w.plugin(ctx, "rewind", "drifting", "--to", "good", "--yes")
		suspendAndEdit("again\n")
		w.plugin(ctx, "resume", "drifting", "--on-drift", "override", "--yes")
		Expect(w.inAgent(ctx, "drifting", "cat /workspace/README.md")).To(Equal(readme))
	})
})

// previews returns the preview of a rewind with the parameters.
func (w *world) previews(ctx context.Context, task, parameters string) historyv1.RewindPreview {
	GinkgoHelper()
	var preview historyv1.RewindPreview
	answer, err := w.rawQuery(ctx, "/apis/history.clew.dev/v1alpha1/namespaces/"+w.namespace+"/tasks/"+task+"/diff/rewind?"+parameters)
	Expect(err).NotTo(HaveOccurred(), "%s", answer)
	Expect(json.Unmarshal(answer, &preview)).To(Succeed())
	return preview
}

// changesOf returns what becomes of each path. Both paths of a renamed file change.
func changesOf(files []historyv1.FileDiff) map[string]string {
	changes := map[string]string{}
	for _, f := range files {
		switch f.Action {
		case "Renamed":
			changes[f.OldPath], changes[f.Path] = "D", "A"
		default:
			changes[f.Path] = f.Action[:1]
		}
	}
	return changes
}

// changed returns, of each path that differs between two trees, what became of it.
func (w *world) changed(ctx context.Context, task, from, to string) map[string]string {
	GinkgoHelper()
	changes := map[string]string{}
	out := w.inAgent(ctx, task, "git -C /workspace diff-tree -r --no-renames --name-status "+strings.TrimSpace(from)+" "+strings.TrimSpace(to))
	for line := range strings.Lines(out) {
		action, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		changes[path] = strings.Replace(action, "T", "M", 1)
	}
	return changes
}
