//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestTheAgentReachesNothingOfClews(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("caged", idle...))

	g.Expect(w.inAgent("caged", "{ find / -xdev -name token -path '*serviceaccount*'; find / -path '*secrets/clew*'; } 2>/dev/null || true")).
		To(gomega.BeEmpty(), "no token")
	g.Expect(w.inAgent("caged", "{ ls -d /var/lib/clew /volume; find / -name spool -not -path '/proc/*' -not -path '/var/spool*' -not -path '/workspace/*'; } 2>/dev/null || true")).
		To(gomega.BeEmpty(), "no git directory, no spool")
	g.Expect(w.inAgent("caged", "env")).NotTo(gomega.ContainSubstring("CLEW_CONFIG"))
	g.Expect(w.inAgent("caged", "touch /run/clew/x 2>/dev/null || echo read-only")).To(gomega.Equal("read-only\n"))
	g.Expect(w.inAgent("caged", `curl -sk -o /dev/null -w '%{http_code}' "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/api/v1/namespaces"`)).
		To(gomega.Or(gomega.Equal("401"), gomega.Equal("403")), "no credential for the Kubernetes API")
	g.Expect(w.inAgent("caged", "grep -l clew-daemon /proc/[0-9]*/comm | wc -l")).
		To(gomega.Equal("1\n"), "the daemon's processes are not in sight, only the shim")
}

// booby traps everything in the worktree by which git runs programs.
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

func TestNothingInTheWorktreeRunsInTheDaemon(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	w.create(w.newTask("hostile", idle...))
	w.inAgent("hostile", trap)

	w.take("hostile", "trapped")
	w.inAgent("hostile", `rm -f /workspace/PWNED "$HOME/PWNED"; echo more > /workspace/changed`)
	w.take("hostile", "trapped-again")
	g.Expect(w.inAgent("hostile", `cat /workspace/PWNED "$HOME/PWNED" 2>/dev/null || true`)).To(gomega.BeEmpty())

	w.rewind("hostile", "back", "trapped")
	g.Expect(w.inAgent("hostile", `cat /workspace/PWNED "$HOME/PWNED" 2>/dev/null || true`)).To(gomega.BeEmpty())
}

func TestEveryPodRunsUnderTheRestrictedStandard(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t), gomega.NewWithT(t)
	system := &corev1.PodList{}
	g.Expect(w.kube.List(w.ctx, system, client.InNamespace(systemNamespace))).To(gomega.Succeed())
	for _, component := range []string{"manager", "server", "gitstore"} {
		g.Expect(system.Items).To(gomega.ContainElement(gomega.HaveField("ObjectMeta.Labels", gomega.HaveKeyWithValue("app.kubernetes.io/component", component))))
	}
	w.create(w.newTask("restricted", idle...))
	task := w.untilAgentRuns("restricted", 3*time.Minute)

	for _, pod := range append(system.Items, *task) {
		t.Run(pod.Name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			g.Expect(w.admit(pod.Spec)).To(gomega.Succeed())
			for name, loosen := range loosened() {
				spec := *pod.Spec.DeepCopy()
				loosen(&spec)
				err := w.admit(spec)
				g.Expect(apierrors.IsForbidden(err)).To(gomega.BeTrue(), "with %s: %v", name, err)
				g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(`violates PodSecurity "restricted:latest"`)))
			}
		})
	}
	for _, name := range []string{systemNamespace, w.namespace} {
		ns := &corev1.Namespace{}
		g.Expect(w.kube.Get(w.ctx, client.ObjectKey{Name: name}, ns)).To(gomega.Succeed())
		g.Expect(ns.Labels).To(gomega.HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
	}
}

// loosened are changes to a pod that the restricted standard does not allow. A
// check that lets one pass would let anything pass.
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
// test's namespace, whether it would take a pod that runs elsewhere.
func (w *world) admit(spec corev1.PodSpec) error {
	w.Helper()
	spec.NodeName, spec.ServiceAccountName, spec.DeprecatedServiceAccount = "", "", "" // of its own namespace, and no matter of the standard
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, GenerateName: "judged-"}, Spec: spec}
	return w.kube.Create(w.ctx, pod, client.DryRunAll)
}
