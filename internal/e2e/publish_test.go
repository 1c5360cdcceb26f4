//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// pushed is a repository of a git host that may be pushed to.
type pushed struct {
	w *world
	// url is where tasks find the repository, and secret a word that their credentials contain.
	url, secret string
	// pod of the git host, as kubectl names it.
	pod []string
}

// first makes a repository with one commit.
const first = `rm -rf "$R"; git init -q --bare -b main "$R"; cd "$R"; git config receive.advertisePushOptions true
git update-ref refs/heads/main "$(git commit-tree -m first "$(git mktree </dev/null)")"`

// newPushed makes a repository that is reached over https, and the Secret git with its password.
func (w *world) newPushed(ctx context.Context) pushed {
	GinkgoHelper()
	p := pushed{
		w: w, url: "https://origin.clew-demo.svc/push/" + w.namespace + ".git", secret: "open-sesame",
		pod: []string{"--namespace", originNamespace, "exec", "deploy/origin"},
	}
	p.host(ctx, first)
	ca := w.kubectl(ctx, "get", "--raw", "/api/v1/namespaces/"+originNamespace+"/services/http:origin:80/proxy/ca.crt")
	Expect(w.kube.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "git"},
		StringData: map[string]string{"username": "demo", "password": "open-sesame", "ca.crt": ca},
	})).To(Succeed())
	return p
}

// host runs a script on the git host, with the repository's folder in $R.
func (p pushed) host(ctx context.Context, script string) string {
	GinkgoHelper()
	env := "set -e; R=/tmp/push/" + p.w.namespace + ".git; export HOME=/tmp GIT_AUTHOR_NAME=Ann GIT_AUTHOR_EMAIL=ann@example.com GIT_COMMITTER_NAME=Ann GIT_COMMITTER_EMAIL=ann@example.com\n"
	return strings.TrimSpace(p.w.kubectl(ctx, append(slices.Clone(p.pod), "--", "sh", "-c", env+script)...))
}

// git runs git in the repository.
func (p pushed) git(ctx context.Context, args string) string {
	GinkgoHelper()
	return p.host(ctx, `git -C "$R" `+args)
}

// publishes waits until the task's condition Published has this reason and a message.
func (w *world) publishes(ctx context.Context, task, reason string, message types.GomegaMatcher) *clewv1.Task {
	GinkgoHelper()
	var got *clewv1.Task
	w.eventually(ctx, func(g Gomega) {
		got = w.task(ctx, task)
		c := meta.FindStatusCondition(got.Status.Conditions, clewv1.TaskPublished)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Reason).To(Equal(reason), c.Message)
		g.Expect(c.Message).To(message)
	}).WithTimeout(2 * time.Minute).Should(Succeed())
	return got
}

var _ = Describe("publishing", func() {
	w := newWorld()

	It("pushes a task's work to its host over https, and nothing over what others pushed; the agent sees no credential", func(ctx SpecContext) {
		w.newPushed(ctx).showsPublishing(ctx)
	})

	It("does so over ssh with a key", SpecTimeout(8*time.Minute), func(ctx SpecContext) {
		w.newPushedBySSH(ctx).showsPublishing(ctx)
	})
})

// showsPublishing publishes a task's work in every way, and is refused in every way.
func (p pushed) showsPublishing(ctx context.Context) {
	GinkgoHelper()
	w := p.w
	task := w.newTask("fix", "sh", "-c", `echo own >own.txt; git add own.txt; git -c user.name=Agent -c user.email=agent@example.com commit -qm "The agent's own"
env >env.txt; echo left >left.txt
grep -rls -e `+p.secret+` /workspace /home /run /var/run /tmp /proc/self/environ >found.txt; git config --list >>env.txt; true`)
	task.Spec.Repository = &clewv1.Repository{URL: p.url, CredentialsSecretRef: &clewv1.NameReference{Name: "git"}}
	task.Spec.Publish = &clewv1.Publish{Branch: "clew/fix", PushOptions: []string{"merge_request.create"}, ProtectedPaths: []string{"left.txt"}}
	w.create(ctx, task)
	publish := func(spec map[string]any) { w.patchSpec(ctx, "fix", map[string]any{"publish": spec}) }

	By("changing a protected file, until somebody agrees")
	got := w.publishes(ctx, "fix", clewv1.ReasonProtectedPaths, ContainSubstring("changes 1 file that protectedPaths selects"))
	Expect(got.Status.Publish.ProtectedFiles).To(Equal([]string{"left.txt"}))
	Expect(p.git(ctx, "for-each-ref --format='%(refname)'")).To(Equal("refs/heads/main"))
	number, approved := got.Status.Publish.Checkpoint, got.Status.Publish.HeldCommit
	publish(map[string]any{"branch": "clew/fix", "approvedCommit": approved})
	got = w.publishes(ctx, "fix", clewv1.ReasonPublished, ContainSubstring("refs/heads/clew/fix"))
	Expect(p.git(ctx, "rev-parse clew/fix")).To(Equal(got.Status.Publish.Commit))
	Expect(p.git(ctx, "log --format='%an: %s' clew/fix")).To(Equal("Clew: Work of the Clew task fix\nAgent: The agent's own\nAnn: first"))
	Expect(p.git(ctx, "log -1 --format=%B clew/fix")).To(ContainSubstring(fmt.Sprintf("Clew-Task: %s/fix\nClew-Checkpoint: %d", w.namespace, number)))
	Expect(p.git(ctx, "show clew/fix:left.txt")).To(Equal("left"))
	Expect(p.git(ctx, "show clew/fix:found.txt")).To(BeEmpty(), "files with the password")
	Expect(p.git(ctx, "show clew/fix:env.txt")).NotTo(Or(ContainSubstring(p.secret), ContainSubstring("CLEW_PUBLISH"), ContainSubstring("extraheader")))

	By("finding that others have pushed")
	theirs := p.host(ctx, `cd "$R"; git update-ref refs/heads/clew/fix "$(git commit-tree -m theirs -p clew/fix 'clew/fix^{tree}')"; git rev-parse clew/fix`)
	publish(map[string]any{"branch": "clew/fix", "approvedCommit": approved, "id": "again"})
	w.publishes(ctx, "fix", clewv1.ReasonDiverged, ContainSubstring("others have pushed to it"))
	Expect(p.git(ctx, "rev-parse clew/fix")).To(Equal(theirs))
	publish(map[string]any{"branch": "clew/fix", "approvedCommit": approved, "onDiverged": "ForceWithLease"})
	w.publishes(ctx, "fix", clewv1.ReasonPublished, ContainSubstring("refs/heads/clew/fix"))
	Expect(p.git(ctx, "rev-parse clew/fix")).To(Equal(got.Status.Publish.Commit))

	By("publishing a checkpoint by hand, with the same checks")
	byHand := []string{"publish", "fix", "--checkpoint", fmt.Sprint(number), "--branch", "clew/by-hand"}
	refused, err := exec.CommandContext(ctx, "kubectl", append([]string{"clew", "--namespace", w.namespace}, byHand...)...).CombinedOutput()
	Expect(err).To(HaveOccurred())
	Expect(string(refused)).To(ContainSubstring("protectedPaths selects"))
	Expect(string(refused)).To(ContainSubstring("set branches[clew/by-hand].approvedCommit to " + approved))
	Expect(w.plugin(ctx, append(byHand, "--approve", approved[:8])...)).To(ContainSubstring("is at refs/heads/clew/by-hand as " + approved))
	Expect(p.git(ctx, "rev-parse clew/by-hand")).To(Equal(approved))

	By("being refused by a hook")
	p.host(ctx, `printf '#!/bin/sh\necho "no pushes on Friday ($GIT_PUSH_OPTION_0)"\nexit 1\n' >"$R/hooks/pre-receive"; chmod +x "$R/hooks/pre-receive"`)
	publish(map[string]any{"branch": "refs/for/main", "approvedCommit": approved, "pushOptions": []string{"topic=fix"}})
	w.publishes(ctx, "fix", clewv1.ReasonPublishRefused, ContainSubstring("no pushes on Friday (topic=fix)"))

	By("pushing for a review")
	p.host(ctx, `rm "$R/hooks/pre-receive"`)
	publish(map[string]any{"branch": "refs/for/main", "approvedCommit": approved})
	w.publishes(ctx, "fix", clewv1.ReasonPublished, ContainSubstring("refs/for/main"))
	Expect(p.git(ctx, "rev-parse refs/for/main")).To(Equal(got.Status.Publish.Commit))

	w.eventually(ctx, func() ([]corev1.Pod, error) {
		pods := &corev1.PodList{}
		err := w.kube.List(ctx, pods, client.InNamespace(w.namespace), client.HasLabels{clewv1.LabelPublication})
		return pods.Items, err
	}).WithTimeout(time.Minute).Should(BeEmpty(), "pods that publish")
	Eventually(ctx, w.eventReasons).WithTimeout(time.Minute).Should(ContainElements(
		clewv1.EventTaskPublished, clewv1.EventTaskNotPublished, clewv1.EventBranchPublished, clewv1.EventBranchNotPublished))
}
