//go:build e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ = Describe("the isolation of a task", func() {
	w := newWorld()

	It("keeps Clew's credentials, git directory, spool and processes from the agent", func(ctx SpecContext) {
		w.create(ctx, w.newTask("caged", idle...))

		Expect(w.inAgent(ctx, "caged", "{ find / -xdev -name token -path '*serviceaccount*'; find / -path '*secrets/clew*'; } 2>/dev/null || true")).
			To(BeEmpty(), "no token")
		Expect(w.inAgent(ctx, "caged", "{ ls -d /var/lib/clew /volume; find / -name spool -not -path '/proc/*' -not -path '/var/spool*' -not -path '/workspace/*'; } 2>/dev/null || true")).
			To(BeEmpty(), "no git directory, no spool")
		Expect(w.inAgent(ctx, "caged", "env")).NotTo(ContainSubstring("CLEW_CONFIG"))
		Expect(w.inAgent(ctx, "caged", "touch /run/clew/x 2>/dev/null || echo read-only")).To(Equal("read-only\n"))
		Expect(w.inAgent(ctx, "caged", `curl -sk -o /dev/null -w '%{http_code}' "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1/namespaces"`)).
			To(Or(Equal("401"), Equal("403")), "no credential for the Kubernetes API")
		Expect(w.inAgent(ctx, "caged", "grep -l clew-daemon /proc/[0-9]*/comm | wc -l")).
			To(Equal("1\n"), "of Clew's processes only the shim is visible")
	})

	It("keeps programs that the worktree configures from running in the daemon", func(ctx SpecContext) {
		w.create(ctx, w.newTask("hostile", idle...))
		w.inAgent(ctx, "hostile", trap)

		w.take(ctx, "hostile", "trapped")
		w.inAgent(ctx, "hostile", `rm -f /workspace/PWNED "$HOME/PWNED"; echo more > /workspace/changed`)
		w.take(ctx, "hostile", "trapped-again")
		Expect(w.inAgent(ctx, "hostile", `cat /workspace/PWNED "$HOME/PWNED" 2>/dev/null || true`)).To(BeEmpty())

		w.rewind(ctx, "hostile", "back", "trapped")
		Expect(w.inAgent(ctx, "hostile", `cat /workspace/PWNED "$HOME/PWNED" 2>/dev/null || true`)).To(BeEmpty())
	})

	It("keeps every pod within the restricted Pod Security Standard", func(ctx SpecContext) {
		system := &corev1.PodList{}
		Expect(w.kube.List(ctx, system, client.InNamespace(systemNamespace))).To(Succeed())
		for _, component := range []string{"manager", "server", "gitstore"} {
			Expect(system.Items).To(ContainElement(HaveField("ObjectMeta.Labels", HaveKeyWithValue("app.kubernetes.io/component", component))))
		}
		w.create(ctx, w.newTask("restricted", idle...))
		task := w.untilAgentRuns(ctx, "restricted", 3*time.Minute)

		for _, pod := range append(system.Items, *task) {
			Expect(w.admit(ctx, pod.Spec)).To(Succeed(), pod.Name)
			for name, loosen := range loosened() {
				spec := *pod.Spec.DeepCopy()
				loosen(&spec)
				Expect(w.admit(ctx, spec)).To(SatisfyAll(
					WithTransform(apierrors.IsForbidden, BeTrue()),
					MatchError(ContainSubstring(`violates PodSecurity "restricted:latest"`))), "%s with %s", pod.Name, name)
			}
		}
		for _, name := range []string{systemNamespace, w.namespace} {
			ns := &corev1.Namespace{}
			Expect(w.kube.Get(ctx, client.ObjectKey{Name: name}, ns)).To(Succeed())
			Expect(ns.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
		}
	})
})

// trap plants a program everywhere in the worktree from where git would run it.
const trap = `
cd /workspace
git config user.email a@b.c; git config user.name A
cat > /workspace/pwn.sh <<'X'
#!/bin/sh
{ echo "pwned by $0 $*"; id; } >> /workspace/PWNED; echo pwned >> "$HOME/PWNED"; cat
X
chmod +x pwn.sh; P=/workspace/pwn.sh
git config core.fsmonitor $P; git config core.hooksPath /workspace/hooks; git config filter.evil.clean $P; git config filter.evil.smudge $P
git config diff.evil.textconv $P; git config diff.external $P; git config core.sshCommand $P; git config uploadpack.packObjectsHook $P
git config credential.helper $P; git config core.pager $P; git config core.editor $P; git config gpg.program $P; git config core.askPass $P
git config remote.origin.uploadpack $P; git config remote.origin.promisor true; git config core.alternateRefsCommand $P
mkdir -p hooks .git/hooks; for h in pre-commit post-commit post-checkout post-index-change reference-transaction pre-push post-merge update pre-receive; do cp pwn.sh hooks/$h; cp pwn.sh .git/hooks/$h; done
printf '* filter=evil diff=evil\n' > .gitattributes
mkdir -p .git/info; printf '* filter=evil diff=evil\n' > .git/info/attributes
git init -q inner; (cd inner; git config core.fsmonitor $P; git config filter.evil.clean $P; cp $P .git/hooks/post-index-change; echo '* filter=evil' > .gitattributes; echo x > x)
printf '[submodule "x"]\n path = x\n url = -u./pwn.sh\n' > .gitmodules
ln -s /var/lib/clew/git stolen; mkfifo fifo; ln -s /var/run/secrets secrets-link
rm -f PWNED "$HOME/PWNED"; echo change > changed
`

// loosened returns changes to a pod that the restricted standard forbids. A check that
// admits one of them checks nothing.
func loosened() map[string]func(*corev1.PodSpec) {
	return map[string]func(*corev1.PodSpec){
		"a capability": func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_RAW"}
		},
		"more privileges on the way": func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil },
		"a folder of the node": func(s *corev1.PodSpec) {
			s.Volumes = append(s.Volumes, corev1.Volume{Name: "node", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
		},
	}
}

// admit asks the API server, which enforces the restricted standard in the
// world's namespace, whether it would admit a pod that runs elsewhere.
func (w *world) admit(ctx context.Context, spec corev1.PodSpec) error {
	GinkgoHelper()
	spec.NodeName, spec.ServiceAccountName, spec.DeprecatedServiceAccount = "", "", "" // they belong to its own namespace, not to the standard
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "judged-"}, Spec: spec}
	return w.kube.Create(ctx, pod, client.DryRunAll)
}
