//go:build e2e

package e2e

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// servesSSH starts an sshd with a key of its own, which lets in the owner of another one.
const servesSSH = `set -e; mkdir /tmp/ssh; cd /tmp/ssh
ssh-keygen -q -t ed25519 -N "" -f host; ssh-keygen -q -t ed25519 -N "" -f key
printf 'Port 2222\nHostKey /tmp/ssh/host\nAuthorizedKeysFile /tmp/ssh/key.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile none\n' >config
exec /usr/sbin/sshd -D -e -f /tmp/ssh/config`

// newPushedBySSH starts a git host with a repository that is reached by ssh, and makes the Secret
// git with the key and the host's.
func (w *world) newPushedBySSH(ctx context.Context) pushed {
	GinkgoHelper()
	w.startSSHHost(ctx)
	p := pushed{w: w, url: "ssh://git@ssh." + w.namespace + ".svc/tmp/push/" + w.namespace + ".git", pod: []string{"exec", "ssh"}}
	p.host(ctx, first)
	key := p.host(ctx, "cat /tmp/ssh/key") + "\n"
	lines := strings.Split(key, "\n")
	p.secret = lines[len(lines)-3] // the last one of the key itself
	Expect(w.kube.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "git"}, Type: corev1.SecretTypeSSHAuth,
		StringData: map[string]string{"ssh-privatekey": key, "known_hosts": "ssh." + w.namespace + ".svc " + p.host(ctx, "cat /tmp/ssh/host.pub")},
	})).To(Succeed())
	return p
}

// startSSHHost starts a pod with an sshd, and waits until it answers. An sshd without privileges
// lets in its own user, who needs a name and a shell.
func (w *world) startSSHHost(ctx context.Context) {
	GinkgoHelper()
	in := metav1.ObjectMeta{Namespace: w.namespace, Name: "ssh", Labels: map[string]string{"app": "ssh"}}
	Expect(w.kube.Create(ctx, &corev1.ConfigMap{ObjectMeta: in, Data: map[string]string{"passwd": "git:x:65532:0:git:/tmp:/bin/sh\n"}})).To(Succeed())
	Expect(w.kube.Create(ctx, &corev1.Service{ObjectMeta: in, Spec: corev1.ServiceSpec{
		Selector: in.Labels, Ports: []corev1.ServicePort{{Port: 22, TargetPort: intstr.FromInt32(2222)}},
	}})).To(Succeed())
	pod := &corev1.Pod{ObjectMeta: in, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "sshd", Image: demoImage, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", servesSSH},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			ReadinessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(2222)}}, PeriodSeconds: 1},
			VolumeMounts:    []corev1.VolumeMount{{Name: "passwd", MountPath: "/etc/passwd", SubPath: "passwd"}},
		}},
		Volumes: []corev1.Volume{{Name: "passwd", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ssh"}}}}},
	}}
	Expect(w.kube.Create(ctx, pod)).To(Succeed())
	w.eventually(ctx, func() ([]corev1.PodCondition, error) {
		err := w.get(ctx, "ssh", pod)
		return pod.Status.Conditions, err
	}).WithTimeout(time.Minute).Should(ContainElement(And(HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))), "the sshd answers")
}
