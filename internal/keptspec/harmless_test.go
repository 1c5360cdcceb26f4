package keptspec

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// secrets makes random secrets of the kinds that people put into pods.
func secrets(random *rand.Rand) map[string]string {
	bytes := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.UintN(256))
		}
		return b
	}
	of := func(alphabet string, n int) string {
		var text strings.Builder
		for range n {
			text.WriteByte(alphabet[random.IntN(len(alphabet))])
		}
		return text.String()
	}
	const small, digit = "abcdefghijklmnopqrstuvwxyz", "0123456789"
	const mixed = small + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + digit
	return map[string]string{
		"hex":                hex.EncodeToString(bytes(16)),
		"base64":             base64.StdEncoding.EncodeToString(bytes(24)),
		"base64 for URLs":    base64.RawURLEncoding.EncodeToString(bytes(32)),
		"UUID":               fmt.Sprintf("%x-%x-%x-%x-%x", bytes(4), bytes(2), bytes(2), bytes(2), bytes(6)),
		"letters and digits": of(mixed, 20),
		"small ones":         of(small+digit, 24),
		"a password":         of(mixed+"!#$%^&*-_+=?@~.", 20),
		"a token of GitHub":  "ghp_" + of(mixed, 36),
		"a key of Anthropic": "sk-ant-api03-" + of(mixed+"-_", 60),
		"a key of AWS":       of(mixed+"/+", 40),
		"a JWT":              "eyJhbGciOiJIUzI1NiJ9." + of(mixed+"-_", 30) + "." + of(mixed+"-_", 43),
	}
}

// TestNoRandomSecretIsKept puts secrets of many kinds into many places, under names that say nothing.
func TestNoRandomSecretIsKept(t *testing.T) {
	places := map[string]func(*v1alpha1.TaskSpec, string){
		"a variable": func(s *v1alpha1.TaskSpec, x string) { agentOf(s).Env = []corev1.EnvVar{{Name: "X", Value: x}} },
		"a variable among others": func(s *v1alpha1.TaskSpec, x string) {
			agentOf(s).Env = []corev1.EnvVar{{Name: "X", Value: "mode=fast," + x}}
		},
		"an argument": func(s *v1alpha1.TaskSpec, x string) { agentOf(s).Args = []string{"--mode", x} },
		"an option":   func(s *v1alpha1.TaskSpec, x string) { agentOf(s).Args = []string{"--mode=" + x} },
		"a script": func(s *v1alpha1.TaskSpec, x string) {
			agentOf(s).Command = []string{"sh", "-c", "cd /workspace && work '" + x + "'\nmake"}
		},
		"an annotation":  func(s *v1alpha1.TaskSpec, x string) { s.Template.Annotations = map[string]string{"note": x} },
		"the key of one": func(s *v1alpha1.TaskSpec, x string) { s.Template.Annotations = map[string]string{x: "yes"} },
		"another container": func(s *v1alpha1.TaskSpec, x string) {
			s.Template.Spec.InitContainers = []corev1.Container{{Name: "setup", Command: []string{"work", x}}}
		},
		"a volume": func(s *v1alpha1.TaskSpec, x string) {
			s.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: x}}}}
		},
		"a probe": func(s *v1alpha1.TaskSpec, x string) {
			agentOf(s).ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready/" + x}}}
		},
		"a host": func(s *v1alpha1.TaskSpec, x string) {
			s.Template.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{x}}}
		},
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		for kind, secret := range secrets(random) {
			for place, put := range places {
				spec := builders.Task("work").Spec
				put(&spec, secret)
				kept, err := Of(&spec)
				if err != nil {
					t.Fatal(err)
				}
				all := kept.Spec + strings.Join(kept.Fields, " ") + strings.Join(kept.Variables, " ")
				if strings.Contains(all, secret) || len(kept.Fields)+len(kept.Variables) != 1 {
					t.Errorf("%s in %s is kept: %s, left out: %q, %q", kind, place, secret, kept.Fields, kept.Variables)
				}
			}
		}
	}
}

func agentOf(s *v1alpha1.TaskSpec) *corev1.Container { return &s.Template.Spec.Containers[0] }

func TestWhatTellsOfASecretIsNotKept(t *testing.T) {
	for _, word := range []string{
		"--token=hunter", "--passphrase=hunter", "--auth=ada:hunter", "PASSPHRASE=hunter work", "export TOKEN=hunter", "Authorization: Bearer ab-cd",
		"aws configure set aws_secret_access_key hunter", "curl -u ada:hunter https://example.com", "mysql --password hunter", "login --api-key hunter",
		"Server=db;Password=hunter", "https://ada:hunter@example.com", "postgres://app:hunter@db/app", `{"token": "hunter"}`, `{"password":"hunter"}`,
		"-----BEGIN PRIVATE KEY-----", "set secret hunter",
	} {
		if harmlessWord("", word) {
			t.Errorf("%q is kept", word)
		}
	}
}

func TestOrdinaryCommandsAreKept(t *testing.T) {
	for _, word := range []string{
		"set -eu\nfor f in *.md; do echo \"$f\" >>/tmp/list.txt; done", "git log --oneline -20 >CHANGELOG.md", "cd /workspace && make test 2>&1 | tee -a log.txt",
		`echo '{"type":"message","role":"assistant","text":"I will list the commits."}'`, "test -n \"$TOKEN\" || exit 1", "curl -H \"Authorization: Bearer $TOKEN\" https://example.com/v1/items?page=2",
		"claude-sonnet-4-5-20250929", "gpt-4o-mini-2024-07-18", "sed -e 's/^a$/b/' -i file.txt", "pip install requests==2.31.0", "npm ci --no-audit",
		"/usr/local/lib/python3.11/site-packages", "docker run -u 1000:1000 busybox", "printf '%s\\n' done", "while sleep 1; do date; done",
		`model_providers.stub={name="stub",base_url="http://10.96.1.2:8080/v1",wire_api="responses",env_key="CODEX_API_KEY"}`, "all tests pass now",
		"model_reasoning_effort=low", "go test ./... -run TestWork -count=1", "if [ $? -ne 0 ]; then exit 3; fi",
	} {
		if !harmlessWord("", word) {
			t.Errorf("%q is not kept", word)
		}
	}
}

// TestSamplesAreKeptWhole: their tasks can be forked when they are gone, without a question.
func TestSamplesAreKeptWhole(t *testing.T) {
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tasks := 0
	for _, file := range append(files, "../../hack/demo/manifests/task.yaml") {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			task := &v1alpha1.Task{}
			if err := yaml.Unmarshal([]byte(document), task); err != nil || task.Kind != "Task" {
				continue
			}
			tasks++
			kept, err := Of(&task.Spec)
			if err != nil || len(kept.Fields)+len(kept.Variables) > 0 {
				t.Errorf("%s: left out: %q, %q, %v", file, kept.Fields, kept.Variables, err)
			}
		}
	}
	if tasks < 10 {
		t.Errorf("%d tasks were read, want all samples", tasks)
	}
}

// FuzzOf: whatever a spec contains, what is kept is a spec again, without NUL, and keeping it once more changes nothing.
func FuzzOf(f *testing.F) {
	f.Add("MODE", "fast", "--token", "hunter", "note")
	f.Fuzz(func(t *testing.T, name, value, option, word, key string) {
		spec := builders.Task("work").Spec
		agentOf(&spec).Env = []corev1.EnvVar{{Name: name, Value: value}}
		agentOf(&spec).Args = []string{option, word}
		spec.Template.Annotations = map[string]string{key: value}
		kept, err := Of(&spec)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(kept.Spec+strings.Join(kept.Fields, "")+strings.Join(kept.Variables, ""), "\x00") {
			t.Errorf("kept with NUL: %+v", kept)
		}
		read, err := Read(kept)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Of(read)
		if err != nil || again.Spec != kept.Spec {
			t.Errorf("kept once more, it is %s, and was %s: %v", again.Spec, kept.Spec, err)
		}
	})
}
