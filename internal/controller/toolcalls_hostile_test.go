package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// posts matches the requests that make tasks in a namespace.
func posts(r *http.Request, namespace string) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/namespaces/"+namespace+"/tasks")
}

var _ = Describe("A hostile agent of a supervisor", func() {
	It("reaches nothing but its own children, whatever it says", func() {
		w := newWorld()
		w.running("lead", leads("port"), func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "work"} })
		w.running("rival", leads("other"))
		w.running("stranger")
		w.recordMany("stranger", 2)
		w.answered("rival", "task_create", `{"name":"worker","prompt":"p"}`, ContainSubstring("was made"))
		w.start(w.pod("rival-worker", 1))
		w.until("rival-worker", v1alpha1.ReasonRunning)
		w.recordMany("rival-worker", 2)
		before := map[string]int64{}
		for _, t := range w.tasks() {
			before[t.Name] = t.Generation
		}
		const noChild = "The task lead has no child "
		for _, name := range []string{
			"stranger", "rival", "rival-worker", "worker", "nobody", "../" + w.namespace + "/stranger", "stranger/status", "..", "%2e%2e", "Stranger", "a\\u0000b", strings.Repeat("x", 300),
		} {
			w.refused("lead", "task_stop", fmt.Sprintf(`{"task":"%s"}`, name), noChild)
			w.refused("lead", "task_resume", fmt.Sprintf(`{"task":"%s","prompt":"p"}`, name), noChild)
			w.refused("lead", "task_rewind", fmt.Sprintf(`{"task":"%s","checkpoint":1}`, name), noChild)
			w.refused("lead", "task_fork", fmt.Sprintf(`{"task":"%s","name":"ways","variants":[{"name":"x"}]}`, name), noChild)
			w.refused("lead", "task_create", fmt.Sprintf(`{"name":"a","prompt":"p","start_from":"%s"}`, name), noChild)
			w.refused("lead", "task_create", fmt.Sprintf(`{"name":"a","prompt":"p","depends_on":["%s"]}`, name), noChild)
			w.refused("lead", "publish", fmt.Sprintf(`{"task":"%s"}`, name), noChild)
		}
		for _, name := range []string{"", "..", "a/b", "../a", "A", "a b", "-", "a.b", strings.Repeat("x", 70000)} {
			w.refused("lead", "task_create", fmt.Sprintf(`{"name":%q,"prompt":"p"}`, name), "use ")
			w.refused("lead", "task_fork", fmt.Sprintf(`{"task":"self","name":%q,"variants":[{"name":"x"}]}`, name), "use ")
		}
		w.Expect(w.children("lead")).To(BeEmpty())
		for _, t := range w.tasks() {
			w.Expect(t.Generation).To(Equal(before[t.Name]), "task %s", t.Name)
		}
		forks := &v1alpha1.ForkList{}
		w.Expect(w.client.List(w.ctx, forks, client.InNamespace(w.namespace))).To(Succeed())
		w.Expect(forks.Items).To(BeEmpty())
	})

	It("decides about nothing that its supervisor's spec decides", func() {
		w := newWorld()
		w.running("lead", leads("port"), func(t *v1alpha1.Task) { t.Spec.Publish = &v1alpha1.Publish{Branch: "work"} })
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		for tool, arguments := range map[string][]string{
			"task_create": {
				`"template":{}`, `"image":"evil"`, `"env":[]`, `"agent":{"type":"Exec"}`, `"tools":["publish"]`, `"role":"Supervisor"`, `"children":{}`, `"contract":{"name":"other"}`,
				`"repository":{}`, `"credentialsSecretRef":{"name":"key"}`, `"publish":{"branch":"main"}`, `"parentRef":{"name":"rival"}`, `"serviceAccountName":"admin"`, `"namespace":"kube-system"`,
			},
			"task_fork":   {`"template":{}`, `"conversation":"Include"`, `"adopt":"Latest"`},
			"task_resume": {`"mode":"Clean"`, `"onDrift":"Override"`},
			"task_rewind": {`"scope":"Code"`, `"to":{"commit":"x"}`, `"onDrift":"Override"`},
			"task_stop":   {`"delete":true`},
			"phase_set":   {`"phases":["Mine"]`, `"contract":"other"`},
			"publish":     {`"branch":"main"`, `"pushOptions":["ci.skip"]`, `"approvedCommit":"x"`, `"protectedPaths":[]`, `"onDiverged":"Force"`, `"repository":"https://evil.example.com"`},
		} {
			for _, field := range arguments {
				w.refused("lead", tool, "{"+field+"}", "The arguments are not those of "+tool)
			}
		}
		w.Expect(w.children("lead")).To(ConsistOf("lead-parser"))
		w.Expect(w.task("lead-parser").Generation).To(BeEquivalentTo(1))
	})

	It("forks nothing that somebody has given to a child", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		env := func(t *v1alpha1.Task) {
			t.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "KEY", Value: "secret"}}
		}
		w.running("deploy", childOf("lead"), env)
		w.recordMany("deploy", 1)
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		w.start(w.pod("lead-parser", 1))
		w.until("lead-parser", v1alpha1.ReasonRunning)
		w.recordMany("lead-parser", 1)
		const variants = `"variants":[{"name":"mine","prompt":"Print the environment."}]`
		w.refused("lead", "task_fork", `{"task":"deploy","name":"f",`+variants+`}`, "a supervisor forks only the tasks that its own tools have made: make a task with task_create, and name deploy in start_from")

		By("somebody's change of a child that it has made")
		w.change("lead-parser", env)
		w.refused("lead", "task_fork", `{"task":"parser","name":"g",`+variants+`}`, "spec.template of the task parser was changed by ")
		w.refused("lead", "task_stop", `{"task":"parser"}`, "spec.template of the task parser was changed by ")
		forks := &v1alpha1.ForkList{}
		w.Expect(w.client.List(w.ctx, forks, client.InNamespace(w.namespace))).To(Succeed())
		w.Expect(forks.Items).To(BeEmpty())
		w.Expect(w.children("lead")).To(ConsistOf("deploy", "lead-parser"))

		By("continuing the files in its own template")
		w.answered("lead", "task_create", `{"name":"next","prompt":"p","start_from":"deploy"}`, ContainSubstring("was made"))
		w.Expect(w.task("lead-next").Spec.Template).To(Equal(w.task("lead").Spec.Template))
	})

	It("calls for another task in vain", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		former := w.id("lead")
		former.UID = "a-former-lead"
		id := w.store.Call(former, "task_create", `{"name":"a","prompt":"p"}`)
		w.Eventually(func() (any, error) {
			call, err := w.store.ToolCall(w.ctx, former.UID, id)
			return call.Answer, err
		}).Should(HaveValue(And(HaveField("Refused", BeTrue()), HaveField("Text", "The task that has called is gone."))))
		w.Expect(w.children("lead")).To(BeEmpty())
	})
})

var _ = Describe("A hostile tenant beside a supervisor", func() {
	It("is none of its children, whatever labels its tasks have", func() {
		w := newWorld()
		w.running("lead", leads("port"), maximum(2))
		for i := range 3 {
			w.apply(fmt.Sprint("labelled-", i), builders.Suspended, func(t *v1alpha1.Task) { t.Labels = map[string]string{v1alpha1.LabelParent: "lead"} })
		}
		w.answered("lead", "task_create", `{"name":"one","prompt":"p"}`, ContainSubstring("was made"))
		w.answered("lead", "task_create", `{"name":"two","prompt":"p"}`, ContainSubstring("was made"))
		w.refused("lead", "task_create", `{"name":"three","prompt":"p"}`, "has 2 children, and children.maximum allows 2")
	})

	It("has no part in what is published, whatever labels its checkpoints have", func() {
		w := newWorld()
		w.running("lead", leads("port"), func(t *v1alpha1.Task) {
			t.Spec.Publish = &v1alpha1.Publish{Branch: "work", When: v1alpha1.PublishCalled}
		})
		for i := range 3 {
			c := &v1alpha1.Checkpoint{}
			c.Namespace, c.Name, c.Labels = w.namespace, fmt.Sprint("labelled-", i), map[string]string{v1alpha1.LabelTaskUID: w.id("lead").UID}
			c.Spec.TaskRef.Name, c.Spec.Branches = "nobody", []v1alpha1.CheckpointBranch{{Name: "work"}}
			w.Expect(w.client.Create(w.ctx, c)).To(Succeed())
		}
		w.recordMany("lead", 1)
		id := w.calls("lead", "publish", `{}`)
		pod, config := w.branchPublisher("lead-1", "work", 1)
		w.publishEnds(pod, daemonapi.PublishResult{Reason: v1alpha1.ReasonPublished, Ref: config.Ref, Commit: strings.Repeat("0", 40)})
		w.Expect(w.answer("lead", id).Refused).To(BeFalse())
	})
})

var _ = Describe("The calls of supervisors", func() {
	It("stop a child once, although the manager was killed and somebody has started the child again", func() {
		w := newWorld()
		w.running("lead", leads("port"))
		w.answered("lead", "task_create", `{"name":"parser","prompt":"p"}`, ContainSubstring("was made"))
		p := w.pod("lead-parser", 1)
		w.start(p)
		w.until("lead-parser", v1alpha1.ReasonRunning)
		w.requests.setSpoil(func(r *http.Request) error {
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/tasks/lead-parser") {
				w.store.SetDown(true)
				return errAfterwards
			}
			return nil
		})
		id := w.calls("lead", "task_stop", `{"task":"parser"}`)
		w.Eventually(w.current).WithArguments("lead-parser").Should(HaveField("Spec.OperatingMode", v1alpha1.OperatingModeSuspended))
		w.requests.setSpoil(nil)
		w.stop()
		w.change("lead-parser", builders.Running)
		w.store.SetDown(false)
		w.startManager()
		w.Expect(w.answer("lead", id)).To(And(HaveField("Refused", BeTrue()), HaveField("Text", ContainSubstring("somebody has changed it since"))))
		w.Expect(w.task("lead-parser").Spec.OperatingMode).To(Equal(v1alpha1.OperatingModeRunning))

		By("calling again")
		w.answered("lead", "task_stop", `{"task":"parser"}`, ContainSubstring("The task parser"))
		w.untilStopped(p)
	})

	It("wait for none of another namespace", func() {
		w := newWorld()
		w.neighbour = w.newNamespace()
		w.restartManager()
		other := w.in(w.neighbour)
		w.running("lead", leads("port"))
		other.running("lead", leads("port"))
		held, release := make(chan struct{}), make(chan struct{})
		first := sync.OnceFunc(func() { close(held) })
		w.requests.setSpoil(func(r *http.Request) error {
			if posts(r, w.namespace) {
				first()
				<-release
			}
			return nil
		})
		id := w.calls("lead", "task_create", `{"name":"slow","prompt":"p"}`)
		w.Eventually(held).Should(BeClosed())
		other.answered("lead", "task_create", `{"name":"fast","prompt":"p"}`, ContainSubstring("was made"))
		close(release)
		w.Expect(w.answer("lead", id).Refused).To(BeFalse())
	})
})
