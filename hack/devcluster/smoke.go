package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// smoke tests what Clew needs from a cluster, in a namespace that it removes afterwards:
// restricted pods, a volume, DNS, services, logs, exec, a database, and the refusal of pods
// that are not restricted.
func (c *cluster) smoke(ctx context.Context) (err error) {
	version, err := kubernetesVersion()
	if err != nil {
		return err
	}
	t := &smokeTest{
		cluster: c, ns: "smoke-" + strings.ToLower(rand.Text()[:8]),
		kubectl: filepath.Join(c.cached("k8s-"+version, "bin"), "kubectl"),
	}
	defer func() {
		gone := c.progress.step("removing the namespace and its volume", func() error { return t.cleanUp(context.WithoutCancel(ctx)) })
		err = errors.Join(err, gone)
		if err == nil {
			c.progress.say("Everything works (%s).", c.progress.total())
		}
	}()
	for _, s := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"a restricted namespace takes restricted pods", t.create},
		{"pods with a volume, a sidecar and a database get ready", t.ready},
		{"a pod that is not restricted is refused", t.refuse},
		{"kubectl logs shows what a container said", t.logs},
		{"kubectl exec runs git on the volume", t.exec},
		{"names and cluster addresses work in pods", t.inside},
		{"cluster addresses work from this machine", t.outside},
		{"the audit log counts writes", t.audit},
	} {
		if err := c.progress.step(s.what, func() error { return s.do(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

type smokeTest struct {
	*cluster
	ns, kubectl string
}

func (t *smokeTest) kube(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, t.kubectl, append([]string{"--kubeconfig", t.kubeconfig(), "--cache-dir", t.path("kubectl"), "-n", t.ns}, args...)...)
	cmd.Env, cmd.Stdin = cleanEnv(os.Environ()), strings.NewReader(stdin)
	return runCmd(cmd)
}

const restrictedPod = `securityContext: {runAsNonRoot: true, runAsUser: %d, runAsGroup: %[1]d, fsGroup: %[1]d, seccompProfile: {type: RuntimeDefault}}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0`

const restrictedContainer = `imagePullPolicy: IfNotPresent
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}`

func smokeManifest(ns string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: work, namespace: %[1]s}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: git, namespace: %[1]s}
spec: {selector: {app: git}, ports: [{port: 80, targetPort: 9418}]}
---
apiVersion: v1
kind: Pod
metadata: {name: git, namespace: %[1]s, labels: {app: git}}
spec:
  %[2]s
  initContainers:
  - name: sidecar
    image: %[5]s
    restartPolicy: Always
    command: [git, daemon, --base-path=/work, --export-all, --reuseaddr]
    %[4]s
    startupProbe: {tcpSocket: {port: 9418}, periodSeconds: 1}
    volumeMounts: [{name: work, mountPath: /work}]
  containers:
  - name: main
    image: %[5]s
    command: [bash, -c, "echo I am $(id -u); exec sleep 600"]
    %[4]s
    volumeMounts: [{name: work, mountPath: /work, subPath: repositories}]
  volumes: [{name: work, persistentVolumeClaim: {claimName: work}}]
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: %[1]s}
spec:
  %[3]s
  containers:
  - name: postgres
    image: %[6]s
    %[4]s
    env: [{name: POSTGRES_PASSWORD, value: smoke}, {name: POSTGRES_USER, value: clew}, {name: PGDATA, value: /var/lib/postgresql/data/pgdata}]
    readinessProbe: {exec: {command: [pg_isready, -h, 127.0.0.1, -U, clew]}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /var/lib/postgresql/data}, {name: run, mountPath: /run/postgresql}, {name: run, mountPath: /tmp}]
  volumes: [{name: data, emptyDir: {}}, {name: run, emptyDir: {}}]
`, ns, fmt.Sprintf(restrictedPod, 1000), fmt.Sprintf(restrictedPod, 999), restrictedContainer, baseImage, postgresImage)
}

func (t *smokeTest) create(ctx context.Context) error {
	return waitFor(ctx, 20*time.Second, func(ctx context.Context) error {
		_, err := t.kube(ctx, smokeManifest(t.ns), "apply", "-f", "-")
		return err
	})
}

func (t *smokeTest) ready(ctx context.Context) error {
	_, err := t.kube(ctx, "", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
	if err != nil {
		events, _ := t.kube(ctx, "", "get", "events", "--sort-by=.lastTimestamp")
		return fmt.Errorf("%w\n%s", err, lastLines(events, 10))
	}
	return nil
}

func (t *smokeTest) refuse(ctx context.Context) error {
	_, err := t.kube(ctx, "", "run", "root", "--image="+baseImage, "--restart=Never")
	if err == nil {
		return errors.New("the API server admitted it")
	}
	if !strings.Contains(err.Error(), "violates PodSecurity") {
		return err
	}
	return nil
}

func (t *smokeTest) logs(ctx context.Context) error {
	return t.expect(ctx, "I am 1000", "logs", "git", "-c", "main")
}

func (t *smokeTest) exec(ctx context.Context) error {
	script := "cd /work && git init -q --bare r.git && git -C r.git hash-object -w --stdin </dev/null && stat -c %u r.git"
	return t.expect(ctx, "1000", "exec", "git", "-c", "main", "--", "sh", "-c", script)
}

// inside calls the pod's own daemon by the name of its Service, so that the call goes
// through DNS and the cluster address back into the same pod.
func (t *smokeTest) inside(ctx context.Context) error {
	script := "getent hosts kubernetes.default.svc && git ls-remote git://git.$0.svc:80/repositories/r.git && echo reached"
	return t.expect(ctx, "reached", "exec", "git", "-c", "main", "--", "sh", "-c", script, t.ns)
}

func (t *smokeTest) outside(ctx context.Context) error {
	ip, err := t.kube(ctx, "", "get", "service", "git", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", net.JoinHostPort(ip, "80"))
	if err != nil {
		return err
	}
	return conn.Close()
}

// audit expects the smoke test's own writes in the audit log.
func (t *smokeTest) audit(ctx context.Context) error {
	return waitFor(ctx, 5*time.Second, func(context.Context) error {
		data, err := os.ReadFile(t.path(auditFile))
		if err != nil {
			return err
		}
		for _, line := range strings.Split(string(data), "\n") {
			var e struct {
				Verb      string
				User      struct{ Username string }
				ObjectRef struct{ Resource, Namespace string }
			}
			if !strings.Contains(line, t.ns) || json.Unmarshal([]byte(line), &e) != nil {
				continue
			}
			if e.Verb == "create" && e.User.Username == "clew-admin" && e.ObjectRef.Resource == "pods" && e.ObjectRef.Namespace == t.ns {
				return nil
			}
		}
		return errors.New("the audit log has no entry for the pods that were created")
	})
}

func (t *smokeTest) expect(ctx context.Context, want string, args ...string) error {
	out, err := t.kube(ctx, "", args...)
	if err != nil {
		return err
	}
	if !strings.Contains(out, want) {
		return fmt.Errorf("kubectl %s printed %q, without %q", strings.Join(args, " "), out, want)
	}
	return nil
}

// cleanUp removes the namespace and waits until its volume's folder is gone.
func (t *smokeTest) cleanUp(ctx context.Context) error {
	if _, err := t.kube(ctx, "", "delete", "namespace", t.ns, "--ignore-not-found", "--timeout=90s"); err != nil {
		return err
	}
	return waitFor(ctx, time.Minute, func(context.Context) error {
		left, err := filepath.Glob(t.path("volumes", "*_"+t.ns+"_*"))
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("%s is still there", left[0])
		}
		return nil
	})
}
