package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// maxInstance keeps the default networks of all instances inside their three /16 blocks.
const maxInstance = 15

// settings holds the folders and addresses of one instance. They are fixed while the cluster
// is up.
type settings struct {
	// Instance is a number from 0 to 15 that distinguishes several clusters on one machine.
	Instance int `json:"instance"`
	// State is the folder that `down` removes.
	State string `json:"state"`
	// Cache is the folder that is kept: binaries and base images.
	Cache string `json:"-"`
	// PodCIDR and ServiceCIDR are the cluster's own networks.
	PodCIDR     netip.Prefix `json:"podCIDR"`
	ServiceCIDR netip.Prefix `json:"serviceCIDR"`
	// LinkCIDR is the /30 between this machine (the first address) and the node's network
	// namespace (the second).
	LinkCIDR netip.Prefix `json:"linkCIDR"`
	// Nodes is 2 for a cluster with a second node, and 0 for one without.
	Nodes int `json:"nodes,omitempty"`
	// APIPort is the API server's port on the node's address.
	APIPort int `json:"apiPort"`
	// Kubernetes is the version that runs, such as v1.36.3.
	Kubernetes string `json:"kubernetes"`
	// Current is true if the user's own cluster is used instead.
	Current bool `json:"-"`
	// isSecond is true for the settings of the second node.
	isSecond bool
}

// settingsFrom reads settings from environment variables; getenv is os.Getenv, except in
// tests. Errors name the variable and its valid values.
func settingsFrom(getenv func(string) string) (settings, error) {
	s := settings{APIPort: 16443}
	switch cluster := getenv("CLUSTER"); cluster {
	case "", "dev":
	case "current":
		s.Current = true
	default:
		return s, fmt.Errorf("CLUSTER is %q; leave it unset for the development cluster, or set it to \"current\" for the cluster of your current kubeconfig context", cluster)
	}
	if v := getenv("CLEW_INSTANCE"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > maxInstance {
			return s, fmt.Errorf("CLEW_INSTANCE is %q; it must be a number from 0 to %d", v, maxInstance)
		}
		s.Instance = n
	}
	if v := getenv("CLEW_API_PORT"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1024 || n > 29999 {
			return s, fmt.Errorf("CLEW_API_PORT is %q; it must be a number from 1024 to 29999", v)
		}
		s.APIPort = n
	}
	if err := s.setFolders(getenv); err != nil {
		return s, err
	}
	if err := s.setNetworks(getenv); err != nil {
		return s, err
	}
	return s, s.setNodes(getenv)
}

// setNodes sets the number of nodes: that of the cluster that is up, unless another one is asked for.
func (s *settings) setNodes(getenv func(string) string) error {
	switch v := getenv("NODES"); v {
	case "":
		var saved settings
		if data, err := os.ReadFile(s.path("settings.json")); err == nil && json.Unmarshal(data, &saved) == nil {
			s.Nodes = saved.Nodes
		}
	case "1":
	case "2":
		s.Nodes = 2
		// Unix socket paths end at 107 bytes, and those of the second node are two bytes longer.
		if len(s.State) > 58 {
			return fmt.Errorf("CLEW_STATE is %q (%d bytes); with two nodes it must be at most 58 bytes long, because it contains sockets", s.State, len(s.State))
		}
	default:
		return fmt.Errorf("NODES is %q; it must be 1 or 2", v)
	}
	return nil
}

func (s *settings) setFolders(getenv func(string) string) error {
	s.State = getenv("CLEW_STATE")
	if s.State == "" {
		s.State = "/var/lib/clew-devcluster"
		if s.Instance > 0 {
			s.State += "-" + strconv.Itoa(s.Instance)
		}
	}
	s.Cache = getenv("CLEW_CACHE")
	if s.Cache == "" {
		home := getenv("HOME")
		if home == "" {
			return fmt.Errorf("HOME is not set, so there is no default for the cache folder; set CLEW_CACHE")
		}
		s.Cache = filepath.Join(home, ".cache", "clew")
	}
	for name, dir := range map[string]string{"CLEW_STATE": s.State, "CLEW_CACHE": s.Cache} {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
			return fmt.Errorf("%s is %q; it must be a clean absolute path", name, dir)
		}
	}
	// Unix socket paths end at 107 bytes; the longest of ours is 46 below State.
	if len(s.State) > 60 {
		return fmt.Errorf("CLEW_STATE is %q (%d bytes); it must be at most 60 bytes long, because it contains sockets", s.State, len(s.State))
	}
	for _, hidden := range []string{"/run", "/var/run", "/var/log", "/sys", "/proc", "/dev"} {
		if s.State == hidden || strings.HasPrefix(s.State, hidden+"/") {
			return fmt.Errorf("CLEW_STATE is %q; it must not be in %s, since the node has a %[2]s of its own", s.State, hidden)
		}
	}
	s.Cache = filepath.Join(s.Cache, "devcluster")
	return nil
}

func (s *settings) setNetworks(getenv func(string) string) error {
	networks := []struct {
		name, def string
		bits      [2]int
		to        *netip.Prefix
	}{
		{"CLEW_POD_CIDR", fmt.Sprintf("10.213.%d.0/20", 16*s.Instance), [2]int{16, 24}, &s.PodCIDR},
		{"CLEW_SERVICE_CIDR", fmt.Sprintf("10.214.%d.0/20", 16*s.Instance), [2]int{16, 24}, &s.ServiceCIDR},
		{"CLEW_LINK_CIDR", fmt.Sprintf("10.215.%d.0/30", s.Instance), [2]int{30, 30}, &s.LinkCIDR},
	}
	for _, n := range networks {
		v := getenv(n.name)
		if v == "" {
			v = n.def
		}
		p, err := netip.ParsePrefix(v)
		if err != nil || !p.Addr().Is4() || p != p.Masked() || p.Bits() < n.bits[0] || p.Bits() > n.bits[1] {
			return fmt.Errorf("%s is %q; it must be an IPv4 network such as %s, with a prefix of %d to %d bits", n.name, v, n.def, n.bits[0], n.bits[1])
		}
		*n.to = p
	}
	for i, a := range networks {
		for _, b := range networks[:i] {
			if a.to.Overlaps(*b.to) {
				return fmt.Errorf("%s (%s) and %s (%s) overlap; choose networks of their own", b.name, b.to, a.name, a.to)
			}
		}
	}
	return nil
}

// nth returns the address n places after the first address of a network.
func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// name is the name of the instance, its iptables rules and its first node.
func (s settings) name() string { return "clew-devcluster-" + strconv.Itoa(s.Instance) }

// programs names the control group of the cluster's own programs.
func (s settings) programs() string { return s.name() + "-programs" }

// link is the name of the machine's end of the veth pair to the node.
func (s settings) link() string {
	if s.isSecond {
		return "clew" + strconv.Itoa(s.Instance) + "b"
	}
	return "clew" + strconv.Itoa(s.Instance)
}

func (s settings) hostIP() netip.Addr { return nth(s.linkCIDR(), 1) }
func (s settings) nodeIP() netip.Addr { return nth(s.linkCIDR(), 2) }

// controlIP is the address of the first node, where the API server is.
func (s settings) controlIP() netip.Addr { return nth(s.LinkCIDR, 2) }
func (s settings) apiIP() netip.Addr     { return nth(s.ServiceCIDR, 1) }
func (s settings) dnsIP() netip.Addr     { return nth(s.ServiceCIDR, 10) }

func (s settings) apiURL() string {
	return fmt.Sprintf("https://%s:%d", s.controlIP(), s.APIPort)
}

// path returns a path in the state folder.
func (s settings) path(elem ...string) string {
	return filepath.Join(append([]string{s.State}, elem...)...)
}

// cached returns a path in the cache folder.
func (s settings) cached(elem ...string) string {
	return filepath.Join(append([]string{s.Cache}, elem...)...)
}

func (s settings) kubeconfig() string { return s.path("admin.kubeconfig") }

// save writes the settings with which the cluster is brought up.
func (s settings) save() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(s.path("settings.json"), append(data, '\n'), 0o644)
}

// conflicts compares s with the settings of the cluster in the same state folder. It returns
// one sentence per difference, and none if the state folder has no settings.
func (s settings) conflicts() ([]string, error) {
	data, err := os.ReadFile(s.path("settings.json"))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return compareSettings(data, s)
}

func compareSettings(saved []byte, s settings) ([]string, error) {
	now, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var a, b map[string]any
	if err := json.Unmarshal(saved, &a); err != nil {
		return nil, fmt.Errorf("settings.json in %s is damaged (%w); run down, then up", s.State, err)
	}
	if err := json.Unmarshal(now, &b); err != nil {
		return nil, err
	}
	for k := range a {
		if _, ok := b[k]; !ok {
			b[k] = nil
		}
	}
	var diffs []string
	for k := range b {
		if fmt.Sprint(a[k]) != fmt.Sprint(b[k]) {
			diffs = append(diffs, fmt.Sprintf("%s was %v and is now asked to be %v", k, a[k], b[k]))
		}
	}
	sort.Strings(diffs)
	return diffs, nil
}
