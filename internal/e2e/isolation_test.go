//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

func TestTheAgentReachesNothingOfClews(t *testing.T) {
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
	w, g := newWorld(t), gomega.NewWithT(t)
	ns := &corev1.Namespace{}
	g.Expect(w.kube.Get(w.ctx, client.ObjectKey{Name: systemNamespace}, ns)).To(gomega.Succeed())
	g.Expect(ns.Labels).To(gomega.HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
	w.create(w.newTask("restricted", replay(3, 0)...))
	w.untilState("restricted", 2*time.Minute, clewv1.ReasonCompleted)
	// The namespace of the test enforces it as well: the pod would not have been admitted.
	out, err := w.kubectlIn(w.ctx, nil, "label", "--dry-run=server", "--overwrite", "namespace", systemNamespace, "pod-security.kubernetes.io/enforce=restricted")
	g.Expect(err).NotTo(gomega.HaveOccurred(), out)
}
