package postgres

import "github.com/prometheus/client_golang/prometheus"

// maintenanceMetrics report on the work that follows writes.
type maintenanceMetrics struct {
	leader, waiting, failed, lag, cleaned prometheus.Gauge
	indexed                               prometheus.Counter
	swept                                 *prometheus.CounterVec
}

func newMaintenanceMetrics(registerer prometheus.Registerer) *maintenanceMetrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "clew", Subsystem: "history", Name: name, Help: help})
	}
	m := &maintenanceMetrics{
		leader:  gauge("maintenance_leader", "1 while this process maintains the history database."),
		waiting: gauge("index_waiting_messages", "Messages that wait to be found by search."),
		failed:  gauge("index_failed_messages", "Messages that could not be indexed."),
		lag:     gauge("index_lag_seconds", "Age of the oldest message that waits to be indexed."),
		cleaned: gauge("retention_applied_timestamp_seconds", "When retention was last applied; 0 if this process has not yet."),
		indexed: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "clew", Subsystem: "history", Name: "indexed_messages_total", Help: "Messages that were indexed for search.",
		}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "clew", Subsystem: "history", Name: "swept_rows_total", Help: "Rows that were removed because nothing needs them any more.",
		}, []string{"kind"}),
	}
	for _, kind := range []string{"events", "snapshots", "messages", "pieces"} {
		m.swept.WithLabelValues(kind)
	}
	if registerer != nil {
		registerer.MustRegister(m.all()...)
	}
	return m
}

func (m *maintenanceMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.leader, m.waiting, m.failed, m.lag, m.cleaned, m.indexed, m.swept}
}

func (m *maintenanceMetrics) unregister(registerer prometheus.Registerer) {
	if registerer == nil {
		return
	}
	for _, c := range m.all() {
		registerer.Unregister(c)
	}
}
